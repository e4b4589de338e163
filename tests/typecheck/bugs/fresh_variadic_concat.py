"""Fusing any number of modalities."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def fuse(weights: Float[Array, "modalities"], *features: Float[Array, "batch dim"]) -> Float[Array, "batch dim"]:
    stacked = jnp.stack(features, axis=1)
    w = jax.nn.softmax(weights)
    return jnp.einsum("bmd,m->bd", stacked, w)  # bug: return jnp.einsum("bmd,m->db", stacked, w)


entry = fuse


def sample():
    return fuse(jnp.ones(2), jnp.ones((3, 3)), jnp.ones((3, 3)))
