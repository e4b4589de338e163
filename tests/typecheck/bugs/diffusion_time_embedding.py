"""Sinusoidal embeddings of timesteps."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def time_embedding(t: Float[Array, "b"], freqs: Float[Array, "f"]) -> Float[Array, "b 2*f"]:
    angles = t[:, None] * freqs[None, :]
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)  # bug: return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=0).reshape(t.shape[0], -1)


entry = time_embedding


def sample():
    return time_embedding(jnp.ones(4), jnp.ones(3))
