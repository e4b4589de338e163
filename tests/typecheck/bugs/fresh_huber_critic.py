"""Critic loss against a target of rank one."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def critic_loss(
    w: Float[Array, "obs 1"], obs: Float[Array, "b obs"], rewards: Float[Array, "b"], next_v: Float[Array, "b 1"]
) -> Float[Array, ""]:
    values = obs @ w
    target = rewards[:, None] + 0.99 * next_v  # bug: target = rewards + 0.99 * next_v
    err = jnp.abs(values - jax.lax.stop_gradient(target))
    return jnp.mean(jnp.where(err < 1, 0.5 * err**2, err - 0.5))


entry = critic_loss


def sample():
    return critic_loss(jnp.ones((3, 1)), jnp.ones((4, 3)), jnp.ones(4), jnp.ones((4, 1)))
