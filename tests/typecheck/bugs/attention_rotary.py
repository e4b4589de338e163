"""Rotary position embeddings applied to queries."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def rotary(x: Float[Array, "s h d"], base: float = 10000.0) -> Float[Array, "s h d"]:
    s, _, d = x.shape
    inv_freq = base ** (-jnp.arange(0, d, 2) / d)
    angles = jnp.arange(s)[:, None] * inv_freq
    cos = jnp.cos(angles)[:, None, :]  # bug: cos = jnp.cos(angles)[None, :, :]
    sin = jnp.sin(angles)[:, None, :]  # bug: sin = jnp.sin(angles)[None, :, :]
    x1, x2 = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)


entry = rotary


def sample():
    return rotary(jnp.ones((4, 4, 6)))
