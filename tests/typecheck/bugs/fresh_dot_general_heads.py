"""Attention by explicit dot_general."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def attention(
    q: Float[Array, "b h t d"], k: Float[Array, "b h s d"], v: Float[Array, "b h s e"]
) -> Float[Array, "b t h*e"]:
    scores = jax.lax.dot_general(q, k, (((3,), (3,)), ((0, 1), (0, 1)))) / jnp.sqrt(q.shape[-1])
    probs = jax.nn.softmax(scores)
    out = jax.lax.dot_general(probs, v, (((3,), (2,)), ((0, 1), (0, 1))))
    return out.transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[2], -1)  # bug: return out.reshape(q.shape[0], q.shape[2], -1)


entry = attention


def sample():
    return attention(jnp.ones((2, 3, 4, 5)), jnp.ones((2, 3, 4, 5)), jnp.ones((2, 3, 4, 6)))
