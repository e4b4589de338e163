"""Pytree and Module, the classes that users derive from; containers, views, and `capture`."""
