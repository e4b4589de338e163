"""A learned bias by relative position, looked up for every pair."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def relative_bias(table: Float[Array, "heads 2*max_distance+1"], q_len: int, k_len: int, max_distance: int) -> Float[Array, "heads q_len k_len"]:
    distance = jnp.arange(k_len)[None, :] - jnp.arange(q_len)[:, None]  # bug: distance = jnp.arange(k_len)[:, None] - jnp.arange(q_len)[None, :]
    index = jnp.clip(distance, -max_distance, max_distance) + max_distance
    return table[:, index]


entry = relative_bias


def sample():
    return relative_bias(jnp.ones((2, 9)), 4, 4, 4)
