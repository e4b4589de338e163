"""`weft migrate`: moves programs of weft 0.2 and of flax.nnx, and lists their uses of equinox with advice."""

LIBRARIES = ("weft", "nnx", "equinox")
