"""`weft migrate`: rewrites what a code base imports of flax.nnx, and lists what it uses of equinox, with what to do."""
