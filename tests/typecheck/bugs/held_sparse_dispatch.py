"""Tokens scattered into expert slots of a fixed capacity."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def dispatch(
    x: Float[Array, "n d"], expert: Int[Array, "n"], num_experts: int, capacity: int
) -> Float[Array, "num_experts capacity d"]:
    onehot = jax.nn.one_hot(expert, num_experts, dtype=jnp.int32)
    position = jnp.cumsum(onehot, axis=0) - 1  # bug: position = jnp.cumsum(onehot, axis=0).T - 1
    slot = jnp.take_along_axis(position, expert[:, None], axis=1)[:, 0]
    empty = jnp.zeros((num_experts, capacity, x.shape[-1]))
    return empty.at[expert, slot].set(x, mode="drop")


entry = dispatch


def sample():
    return dispatch(jnp.ones((4, 3)), jnp.zeros(4, int), 4, 2)
