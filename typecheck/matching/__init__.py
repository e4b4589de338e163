"""Values held against annotations, binding dims as it goes."""
