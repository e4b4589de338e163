"""REINFORCE with a baseline."""

from typing import TypedDict

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Rollout(TypedDict):
    obs: Float[Array, "n t o"]
    actions: Int[Array, "n t"]
    returns: Float[Array, "n t"]


def loss(w: Float[Array, "o a"], rollout: Rollout) -> Float[Array, ""]:
    logp = jax.nn.log_softmax(rollout["obs"] @ w)
    chosen = jnp.take_along_axis(logp, rollout["actions"][..., None], axis=-1)  # bug: chosen = jnp.take_along_axis(logp, rollout["actions"][..., None], axis=-1).squeeze(-1)
    advantage = rollout["returns"] - rollout["returns"].mean(axis=0)  # bug: advantage = rollout["returns"] - rollout["returns"].mean(axis=1)
    return -jnp.mean(chosen[..., 0] * advantage)  # bug: return -jnp.mean(chosen * advantage)


entry = loss


def sample():
    rollout: Rollout = {"obs": jnp.ones((4, 4, 3)), "actions": jnp.zeros((4, 4), int), "returns": jnp.ones((4, 4))}
    return loss(jnp.ones((3, 2)), rollout)
