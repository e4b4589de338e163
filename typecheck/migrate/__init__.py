"""`weft migrate`: rewrites what a code base imports of flax.nnx and equinox, where that changes no behaviour."""
