"""Discounted returns with resets at episode ends."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


@jax.jit
def returns(
    rewards: Float[Array, "envs time"], done: Bool[Array, "envs time"], bootstrap: Float[Array, "envs"], gamma: float = 0.99
) -> Float[Array, "envs time"]:
    def step(carry: Float[Array, "envs"], x):
        reward, end = x
        value = reward + gamma * jnp.where(end, 0.0, carry)
        return value, value

    _, values = jax.lax.scan(step, bootstrap, (rewards.T, done.T), reverse=True)  # bug: _, values = jax.lax.scan(step, bootstrap, (rewards, done), reverse=True)
    return values.T


entry = returns


def sample():
    return returns(jnp.ones((4, 4)), jnp.zeros((4, 4), bool), jnp.zeros(4))
