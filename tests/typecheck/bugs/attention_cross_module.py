"""Cross-attention from decoder to encoder, as a weft module."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from weft.core import Module


class CrossAttention(Module):
    query: Float[Array, "inner dec"]
    key: Float[Array, "inner enc"]
    value: Float[Array, "dec enc"]

    def __init__(self, dec: int, enc: int, inner: int, *, key: PRNGKeyArray):
        self.query = jax.random.normal(key, (inner, dec))
        self.key = jax.random.normal(key, (inner, enc))
        self.value = jax.random.normal(key, (dec, enc))

    def __call__(self, x: Float[Array, "t dec"], memory: Float[Array, "s enc"]) -> Float[Array, "t dec"]:
        scores = (x @ self.query.T) @ (memory @ self.key.T).T
        return jax.nn.softmax(scores) @ (memory @ self.value.T)  # bug: return jax.nn.softmax(scores) @ (memory @ self.value)


entry = CrossAttention(4, 4, 4, key=jax.random.key(0))


def sample():
    return entry(jnp.ones((3, 4)), jnp.ones((5, 4)))
