"""The run-time checker: each annotated call, checked while JAX traces it."""
