"""A rolling buffer of the last w observations."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def push(buffer: Float[Array, "w o"], obs: Float[Array, "o"]) -> Float[Array, "w o"]:
    return jnp.concatenate([buffer[1:], obs[None]], axis=0)  # bug: return jnp.concatenate([buffer[:, 1:], obs[:, None]], axis=1)


entry = push


def sample():
    return push(jnp.ones((4, 4)), jnp.ones(4))
