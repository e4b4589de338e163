"""Dropout with a mask shared over the sequence."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def locked_dropout(x: Float[Array, "b s d"], key: PRNGKeyArray, rate: float = 0.1) -> Float[Array, "b s d"]:
    b, s, d = x.shape
    keep = jax.random.bernoulli(key, 1 - rate, (b, 1, d))  # bug: keep = jax.random.bernoulli(key, 1 - rate, (b, d))
    return jnp.where(keep, x / (1 - rate), 0.0)


entry = locked_dropout


def sample():
    return locked_dropout(jnp.ones((4, 4, 3)), jax.random.key(0))
