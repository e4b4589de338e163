"""Huber loss of TD errors over a batch of transitions."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    obs: Float[Array, "b o"]
    action: Int[Array, "b"]
    reward: Float[Array, "b"]
    next_obs: Float[Array, "b o"]


def td_loss(w: Float[Array, "o a"], batch: Batch, gamma: float = 0.99) -> Float[Array, ""]:
    q = batch.obs @ w
    chosen = q[jnp.arange(q.shape[0]), batch.action]
    best = (batch.next_obs @ w).max(axis=1)  # bug: best = (batch.next_obs @ w).max(axis=0)
    error = batch.reward + gamma * best - chosen
    return jnp.mean(jnp.where(jnp.abs(error) < 1, 0.5 * error**2, jnp.abs(error) - 0.5))


entry = td_loss


def sample():
    batch = Batch(jnp.ones((4, 3)), jnp.zeros(4, int), jnp.ones(4), jnp.ones((4, 3)))
    return td_loss(jnp.ones((3, 4)), batch)
