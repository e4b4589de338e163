"""A ring buffer of transitions, as a registered dataclass."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Buffer:
    obs: Float[Array, "size o"]
    action: Float[Array, "size a"]
    cursor: Int[Array, ""]


def add(buffer: Buffer, obs: Float[Array, "o"], action: Float[Array, "a"]) -> Buffer:
    i = buffer.cursor % buffer.obs.shape[0]
    return Buffer(
        buffer.obs.at[i].set(obs),  # bug: buffer.obs.at[:, i].set(obs),
        buffer.action.at[i].set(action),
        buffer.cursor + 1,
    )


entry = add


def sample():
    buffer = Buffer(jnp.zeros((4, 4)), jnp.zeros((4, 2)), jnp.array(0))
    return add(buffer, jnp.ones(4), jnp.ones(2))
