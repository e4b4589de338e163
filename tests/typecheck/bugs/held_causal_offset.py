"""Causal attention of new queries against a longer memory."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def causal_mask(q_len: int, k_len: int) -> Bool[Array, "q_len k_len"]:
    rows = jnp.arange(q_len)[:, None] + (k_len - q_len)
    return jnp.arange(k_len)[None, :] <= rows


def attend(q: Float[Array, "t d"], k: Float[Array, "s d"], v: Float[Array, "s d"]) -> Float[Array, "t d"]:
    scores = q @ k.T
    mask = causal_mask(q.shape[0], k.shape[0])  # bug: mask = causal_mask(k.shape[0], q.shape[0])
    return jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1) @ v


entry = attend


def sample():
    x = jnp.ones((4, 3))
    return attend(x, x, x)
