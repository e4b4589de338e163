"""States: nested mappings of Variables by path, and the filters that select from them."""
