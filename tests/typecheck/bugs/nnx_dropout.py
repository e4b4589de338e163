"""Dropout of whole features, with a stream given to the call."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class FeatureDropout(nnx.Module):
    def __init__(self, rate: float = 0.5):
        self.rate = rate

    def __call__(self, x: Float[Array, "b s d"], *, rngs: nnx.Rngs) -> Float[Array, "b s d"]:
        b, s, d = x.shape
        keep = jax.random.bernoulli(rngs.dropout(), 1 - self.rate, (b, 1, d))  # bug: keep = jax.random.bernoulli(rngs.dropout(), 1 - self.rate, (b, d))
        return jnp.where(keep, x / (1 - self.rate), 0.0)


entry = FeatureDropout


def sample():
    return FeatureDropout()(jnp.ones((4, 4, 6)), rngs=nnx.Rngs(0))
