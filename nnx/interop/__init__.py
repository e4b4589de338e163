"""The ways in and out: `flax.nnx` by name, records, contracts, models converted."""
