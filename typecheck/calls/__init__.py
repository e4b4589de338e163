"""The run-time checker: checks annotated calls, inside transforms while JAX traces them."""
