"""`weft migrate`: moves programs of weft 0.2 and of flax.nnx, and lists what they use of equinox, with what to do."""

LIBRARIES = ("weft", "nnx", "equinox")
