"""Multi-head self-attention whose heads are split off the feature axis."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class SelfAttention(eqx.Module):
    wq: Float[Array, "d d"]
    wk: Float[Array, "d d"]
    wv: Float[Array, "d d"]
    heads: int = eqx.field(static=True)

    def __init__(self, d: int, heads: int, *, key: PRNGKeyArray):
        kq, kk, kv = jax.random.split(key, 3)
        self.wq = jax.random.normal(kq, (d, d))
        self.wk = jax.random.normal(kk, (d, d))
        self.wv = jax.random.normal(kv, (d, d))
        self.heads = heads

    def split(self, x: Float[Array, "s d"]) -> Float[Array, "h s c"]:
        s, d = x.shape
        x = x.reshape(s, self.heads, d // self.heads)  # bug: x = x.reshape(self.heads, s, d // self.heads)
        return x.transpose(1, 0, 2)  # bug: return x

    def __call__(self, x: Float[Array, "s d"]) -> Float[Array, "s d"]:
        q, k, v = self.split(x @ self.wq), self.split(x @ self.wk), self.split(x @ self.wv)
        weights = jax.nn.softmax(q @ k.transpose(0, 2, 1) / jnp.sqrt(q.shape[-1]), axis=-1)
        return (weights @ v).transpose(1, 0, 2).reshape(x.shape)


entry = SelfAttention


def sample():
    return SelfAttention(8, 2, key=jax.random.key(0))(jnp.ones((4, 8)))
