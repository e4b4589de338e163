"""`weft migrate`: rewrites imports of flax.nnx to weft.nnx, and lists uses of equinox with their counterparts."""
