"""Vector quantisation with a codebook that is closed over."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

CODEBOOK: Float[Array, "codes dim"] = jnp.ones((8, 8))


def quantise(x: Float[Array, "n dim"]) -> tuple[Float[Array, "n dim"], Int[Array, "n"]]:
    distances = jnp.sum((x[:, None, :] - CODEBOOK[None, :, :]) ** 2, axis=-1)
    codes = jnp.argmin(distances, axis=1)  # bug: codes = jnp.argmin(distances, axis=0)
    return CODEBOOK[codes], codes


entry = quantise


def sample():
    return quantise(jnp.ones((8, 8)))
