"""A pre-norm transformer block out of its own submodules, verified as a class."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray


class Norm(eqx.Module):
    scale: Float[Array, "dim"]

    def __init__(self, dim: int):
        self.scale = jnp.ones(dim)

    def __call__(self, x: Float[Array, "... dim"]) -> Float[Array, "... dim"]:
        return self.scale * x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


class Attention(eqx.Module):
    wqkv: Float[Array, "dim three_dim"]
    wo: Float[Array, "dim dim"]
    n_heads: int = eqx.field(static=True)

    def __init__(self, dim: int, n_heads: int, key: PRNGKeyArray):
        a, b = jax.random.split(key)
        self.wqkv = jax.random.normal(a, (dim, 3 * dim)) * dim**-0.5
        self.wo = jax.random.normal(b, (dim, dim)) * dim**-0.5
        self.n_heads = n_heads

    def __call__(self, x: Float[Array, "seq dim"], mask: Bool[Array, "seq seq"] | None = None) -> Float[Array, "seq dim"]:
        q, k, v = jnp.split(x @ self.wqkv, 3, axis=-1)
        q, k, v = (t.reshape(t.shape[0], self.n_heads, -1) for t in (q, k, v))
        logits = jnp.einsum("qhc,khc->hqk", q, k) / q.shape[-1] ** 0.5
        if mask is not None:
            logits = jnp.where(mask, logits, -1e9)  # bug: logits = jnp.where(mask[:, None], logits, -1e9)
        out = jnp.einsum("hqk,khc->qhc", jax.nn.softmax(logits), v)
        return out.reshape(x.shape) @ self.wo


class Block(eqx.Module):
    norm1: Norm
    norm2: Norm
    attention: Attention
    up: Float[Array, "dim hidden"]
    down: Float[Array, "hidden dim"]

    def __init__(self, dim: int, hidden: int, n_heads: int, key: PRNGKeyArray):
        keys = jax.random.split(key, 3)
        self.norm1, self.norm2 = Norm(dim), Norm(dim)
        self.attention = Attention(dim, n_heads, keys[0])
        self.up = jax.random.normal(keys[1], (dim, hidden))
        self.down = jax.random.normal(keys[2], (hidden, dim))

    def __call__(self, x: Float[Array, "seq dim"], mask: Bool[Array, "seq seq"] | None = None) -> Float[Array, "seq dim"]:
        x = x + self.attention(self.norm1(x), mask)
        return x + jax.nn.gelu(self.norm2(x) @ self.up) @ self.down


entry = Block


def sample():
    return Block(8, 16, 4, jax.random.key(0))(jnp.ones((4, 8)), jnp.ones((4, 4), bool))
