"""Temporal differences of a DQN with a target network."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from weft import nnx


class QNetwork(nnx.Module):
    def __init__(self, observation: int, width: int, actions: int, *, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(observation, width, rngs=rngs)
        self.out = nnx.Linear(width, actions, rngs=rngs)

    def __call__(self, x: Float[Array, "b observation"]) -> Float[Array, "b actions"]:
        return self.out(nnx.relu(self.hidden(x)))


def td_loss(
    online: QNetwork,
    target: QNetwork,
    observations: Float[Array, "b observation"],
    actions: Int[Array, "b"],
    rewards: Float[Array, "b"],
    following: Float[Array, "b observation"],
) -> Float[Array, ""]:
    q = jnp.take_along_axis(online(observations), actions[:, None], axis=1).squeeze(1)
    best = target(following).max(axis=1)  # bug: best = target(following).max(axis=0)
    return jnp.mean((rewards + 0.99 * jax.lax.stop_gradient(best) - q) ** 2)


entry = td_loss


def sample():
    networks = [QNetwork(3, 8, 4, rngs=nnx.Rngs(seed)) for seed in (0, 1)]
    x = jnp.ones((4, 3))
    return td_loss(*networks, x, jnp.zeros(4, int), jnp.ones(4), x)
