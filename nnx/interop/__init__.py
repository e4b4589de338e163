"""Interoperation: `flax.nnx` by name, models of the real flax, records, and the contract checker."""
