"""Multi-head self-attention of an NNX module."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class SelfAttention(nnx.Module):
    qkv: nnx.Param[Float[Array, "d 3*d"]]
    out: nnx.Param[Float[Array, "d d"]]

    def __init__(self, d: int, heads: int, *, rngs: nnx.Rngs):
        init = nnx.initializers.lecun_normal()
        self.qkv = nnx.Param(init(rngs.params(), (d, 3 * d)))
        self.out = nnx.Param(init(rngs.params(), (d, d)))
        self.heads = heads

    def __call__(self, x: Float[Array, "b s d"]) -> Float[Array, "b s d"]:
        b, s, d = x.shape
        q, k, v = jnp.split((x @ self.qkv).reshape(b, s, self.heads, -1), 3, axis=-1)
        weights = jax.nn.softmax(jnp.einsum("bqhc,bkhc->bhqk", q, k) / q.shape[-1] ** 0.5, axis=-1)
        y = jnp.einsum("bhqk,bkhc->bqhc", weights, v)  # bug: y = jnp.einsum("bhqk,bqhc->bkhc", weights, v).swapaxes(1, 2)
        return y.reshape(b, s, d) @ self.out


entry = SelfAttention


def sample():
    return SelfAttention(8, 4, rngs=nnx.Rngs(0))(jnp.ones((2, 4, 8)))
