"""Decoding one token with a cache in Variables."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from weft import nnx


class CachedAttention(nnx.Module):
    wq: nnx.Param[Float[Array, "d d"]]
    wkv: nnx.Param[Float[Array, "d 2*d"]]
    keys: nnx.Cache[Float[Array, "b length d"]]
    values: nnx.Cache[Float[Array, "b length d"]]
    at: nnx.Cache[Int[Array, ""]]

    def __init__(self, b: int, length: int, d: int, *, rngs: nnx.Rngs):
        self.wq = nnx.Param(rngs.params.normal((d, d)))
        self.wkv = nnx.Param(rngs.params.normal((d, 2 * d)))
        self.keys = nnx.Cache(jnp.zeros((b, length, d)))
        self.values = nnx.Cache(jnp.zeros((b, length, d)))
        self.at = nnx.Cache(jnp.array(0))

    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b d"]:
        k, v = jnp.split(x @ self.wkv, 2, axis=-1)
        at = self.at[...]
        self.keys[...] = self.keys[...].at[:, at].set(k)  # bug: self.keys[...] = self.keys[...].at[at].set(k)
        self.values[...] = self.values[...].at[:, at].set(v)
        self.at[...] += 1
        scores = jnp.einsum("bd,bld->bl", x @ self.wq, self.keys[...])
        scores = jnp.where(jnp.arange(self.keys.shape[1]) <= at, scores, -jnp.inf)
        return jnp.einsum("bl,bld->bd", jax.nn.softmax(scores, axis=-1), self.values[...])


entry = CachedAttention


def sample():
    return CachedAttention(4, 4, 3, rngs=nnx.Rngs(0))(jnp.ones((4, 3)))
