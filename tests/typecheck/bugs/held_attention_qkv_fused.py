"""Fused query/key/value projection."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class FusedAttention(eqx.Module):
    qkv: Float[Array, "3*dim dim"]
    out: Float[Array, "dim dim"]
    num_heads: int = eqx.field(static=True)

    def __init__(self, dim: int, num_heads: int, *, key: PRNGKeyArray):
        if dim % num_heads:
            raise ValueError("num_heads must divide dim")
        k1, k2 = jax.random.split(key)
        self.qkv = jax.random.normal(k1, (3 * dim, dim))
        self.out = jax.random.normal(k2, (dim, dim))
        self.num_heads = num_heads

    def __call__(self, x: Float[Array, "batch seq dim"]) -> Float[Array, "batch seq dim"]:
        b, s, d = x.shape
        h = self.num_heads
        qkv = (x @ self.qkv.T).reshape(b, s, 3, h, d // h)
        q, k, v = jnp.moveaxis(qkv, 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        attended = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)  # bug: attended = jnp.einsum("bhqk,bkhd->bhqd", jax.nn.softmax(scores, -1), v)
        return attended.reshape(b, s, d) @ self.out.T


entry = FusedAttention


def sample():
    return FusedAttention(8, 4, key=jax.random.key(0))(jnp.ones((2, 4, 8)))
