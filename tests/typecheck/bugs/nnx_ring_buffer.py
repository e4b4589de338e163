"""A ring buffer of transitions in Variables."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from weft import nnx


class Replay(nnx.Module):
    observations: nnx.Variable[Float[Array, "capacity o"]]
    rewards: nnx.Variable[Float[Array, "capacity"]]
    at: nnx.Variable[Int[Array, ""]]

    def __init__(self, capacity: int, o: int):
        self.observations = nnx.Variable(jnp.zeros((capacity, o)))
        self.rewards = nnx.Variable(jnp.zeros(capacity))
        self.at = nnx.Variable(jnp.array(0))

    def add(self, observations: Float[Array, "n o"], rewards: Float[Array, "n"]) -> None:
        places = (self.at[...] + jnp.arange(rewards.shape[0])) % self.rewards.shape[0]
        self.observations[...] = self.observations[...].at[places].set(observations)  # bug: self.observations[...] = self.observations[...].at[:, places].set(observations)
        self.rewards[...] = self.rewards[...].at[places].set(rewards)
        self.at[...] += rewards.shape[0]

    def draw(self, places: Int[Array, "n"]) -> tuple[Float[Array, "n o"], Float[Array, "n"]]:
        return self.observations[places], self.rewards[places]


entry = Replay


def sample():
    return Replay(4, 4).add(jnp.ones((4, 4)), jnp.ones(4))
