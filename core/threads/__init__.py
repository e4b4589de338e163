"""`thread`, which puts successors into their places, and `debug_successors`, which reports lost ones."""
