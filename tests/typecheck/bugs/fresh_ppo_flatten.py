"""Flattening a rollout into minibatches."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class Batch(NamedTuple):
    obs: Float[Array, "steps*envs obs"]
    adv: Float[Array, "steps*envs"]


def flatten_rollout(obs: Float[Array, "steps envs obs"], adv: Float[Array, "steps envs"]) -> Batch:
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    steps, envs = adv.shape
    return Batch(
        obs=obs.reshape(steps * envs, -1),
        adv=adv.reshape(steps * envs),  # bug: adv=adv.T.reshape(steps * envs),
    )


entry = flatten_rollout


def sample():
    return flatten_rollout(jnp.ones((4, 3, 2)), jnp.ones((4, 3)))
