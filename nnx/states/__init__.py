"""States: nested mappings of Variables by path, and the filters that pick from them."""
