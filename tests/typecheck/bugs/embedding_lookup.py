"""Token plus position embeddings."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray


class Embedder(eqx.Module):
    tokens: Float[Array, "vocab dim"]
    positions: Float[Array, "max_len dim"]

    def __init__(self, vocab: int, max_len: int, dim: int, key: PRNGKeyArray):
        k1, k2 = jax.random.split(key)
        self.tokens = jax.random.normal(k1, (vocab, dim))
        self.positions = jax.random.normal(k2, (max_len, dim))

    def __call__(self, ids: Int[Array, "b s"]) -> Float[Array, "b s dim"]:
        return self.tokens[ids] + self.positions[jnp.arange(ids.shape[1])]  # bug: return self.tokens[ids] + self.positions[jnp.arange(ids.shape[0])]


entry = Embedder


def sample():
    return Embedder(10, 8, 4, jax.random.key(0))(jnp.zeros((5, 5), int))
