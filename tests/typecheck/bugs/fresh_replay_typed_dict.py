"""A circular replay buffer held in a TypedDict."""

from typing import TypedDict

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Buffer(TypedDict):
    obs: Float[Array, "capacity obs_dim"]
    action: Int[Array, "capacity"]
    reward: Float[Array, "capacity"]
    ptr: Int[Array, ""]


def sample_batch(
    buffer: Buffer, key: jax.Array, batch_size: int
) -> tuple[Float[Array, "batch_size obs_dim"], Int[Array, "batch_size"], Float[Array, "batch_size"]]:
    capacity = buffer["reward"].shape[0]
    idx = jax.random.choice(key, capacity, (batch_size,), replace=False)
    return buffer["obs"][idx], buffer["action"][idx], buffer["reward"][idx]


def push(
    buffer: Buffer, obs: Float[Array, "n obs_dim"], action: Int[Array, "n"], reward: Float[Array, "n"]
) -> Buffer:
    n = reward.shape[0]
    capacity = buffer["reward"].shape[0]
    where = (buffer["ptr"] + jnp.arange(n)) % capacity
    return Buffer(
        obs=buffer["obs"].at[where].set(obs),  # bug: obs=buffer["obs"].at[:, where].set(obs),
        action=buffer["action"].at[where].set(action),
        reward=buffer["reward"].at[where].set(reward),
        ptr=(buffer["ptr"] + n) % capacity,
    )


entry = push


def sample():
    b = Buffer(obs=jnp.zeros((6, 6)), action=jnp.zeros(6, int), reward=jnp.zeros(6), ptr=jnp.array(0))
    return push(b, jnp.ones((6, 6)), jnp.ones(6, int), jnp.ones(6))
