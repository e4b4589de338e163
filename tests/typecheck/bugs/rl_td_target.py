"""One step of deep Q-learning on a batch of transitions."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclass
class Batch:
    obs: Float[Array, "b o"]
    action: Int[Array, "b"]
    reward: Float[Array, "b"]
    next_obs: Float[Array, "b o"]
    done: Float[Array, "b"]

def qnet(p: Float[Array, "o a"], obs: Float[Array, "b o"]) -> Float[Array, "b a"]:
    return obs @ p

def dqn_loss(p: Float[Array, "o a"], target: Float[Array, "o a"], batch: Batch) -> Float[Array, ""]:
    q = jnp.take_along_axis(qnet(p, batch.obs), batch.action[:, None], axis=1)[:, 0]  # bug: q = jnp.take_along_axis(qnet(p, batch.obs), batch.action[:, None], axis=1)
    nq = qnet(target, batch.next_obs).max(-1)
    y = batch.reward + 0.99 * (1 - batch.done) * nq
    return jnp.mean((q - jax.lax.stop_gradient(y)) ** 2)

entry = dqn_loss
def sample(): return dqn_loss(jnp.ones((3, 2)), jnp.ones((3, 2)), Batch(jnp.ones((4, 3)), jnp.zeros(4, int), jnp.ones(4), jnp.ones((4, 3)), jnp.zeros(4)))
