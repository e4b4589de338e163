"""Attention with linear position biases, one slope a head."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def alibi_attention(
    q: Float[Array, "h t c"], k: Float[Array, "h s c"], v: Float[Array, "h s c"], slopes: Float[Array, "h"]
) -> Float[Array, "h t c"]:
    distance = jnp.arange(k.shape[1])[None, :] - jnp.arange(q.shape[1])[:, None]
    bias = slopes[:, None, None] * distance  # bug: bias = slopes[:, None, None] * distance.T
    scores = q @ k.swapaxes(-1, -2) / jnp.sqrt(q.shape[-1]) + bias
    return jax.nn.softmax(scores, axis=-1) @ v


entry = alibi_attention


def sample():
    x = jnp.ones((2, 4, 3))
    return alibi_attention(x, x, x, jnp.ones(2))
