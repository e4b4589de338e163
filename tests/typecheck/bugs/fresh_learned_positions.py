"""Token embedding with learned positions, cut to the length of the text."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Embedder(eqx.Module):
    tokens: Float[Array, "vocab dim"]
    positions: Float[Array, "max_len dim"]

    def __init__(self, vocab: int, max_len: int, dim: int, *, key: jax.Array):
        k1, k2 = jax.random.split(key)
        self.tokens = 0.02 * jax.random.normal(k1, (vocab, dim))
        self.positions = 0.02 * jax.random.normal(k2, (max_len, dim))

    def __call__(self, ids: Int[Array, "seq"]) -> Float[Array, "seq dim"]:
        (seq,) = ids.shape
        return self.tokens[ids] + self.positions[:seq]  # bug: return self.tokens[ids] + self.positions


entry = Embedder


def sample():
    return Embedder(11, 6, 4, key=jax.random.key(0))(jnp.arange(6))
