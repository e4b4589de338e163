"""The references boundary: how object graphs enter a JAX transform, and how their mutations leave it as updates."""
