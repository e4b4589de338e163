"""Pinball loss of several quantiles at once."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def pinball(pred: Float[Array, "b q"], target: Float[Array, "b"], levels: Float[Array, "q"]) -> Float[Array, "b"]:
    error = target[:, None] - pred  # bug: error = target - pred
    return jnp.maximum(levels * error, (levels - 1) * error).mean(axis=-1)


entry = pinball


def sample():
    return pinball(jnp.ones((3, 3)), jnp.ones(3), jnp.ones(3))
