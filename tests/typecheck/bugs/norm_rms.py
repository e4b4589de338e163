"""RMS normalisation, string annotations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rms_norm(x: Float[Array, "b s d"], scale: Float[Array, "d"]) -> Float[Array, "b s d"]:
    ms = jnp.mean(jnp.square(x), axis=-1)
    return x * jax.lax.rsqrt(ms + 1e-6)[..., None] * scale  # bug: return x * jax.lax.rsqrt(ms + 1e-6)[:, None] * scale


entry = rms_norm


def sample():
    return rms_norm(jnp.ones((3, 4, 4)), jnp.ones(4))
