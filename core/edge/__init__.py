"""The edge to JAX: the one file that reaches into its private modules, and what JAX leaves untyped."""
