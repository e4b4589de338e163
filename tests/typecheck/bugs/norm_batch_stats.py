"""Batch normalisation that returns its new running mean."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def batch_norm(
    x: Float[Array, "b c"], running: Float[Array, "c"], momentum: float = 0.9
) -> tuple[Float[Array, "b c"], Float[Array, "c"]]:
    mean = x.mean(axis=0)  # bug: mean = x.mean(axis=1)
    return x - mean, momentum * running + (1 - momentum) * mean


entry = batch_norm


def sample():
    return batch_norm(jnp.ones((4, 4)), jnp.zeros(4))
