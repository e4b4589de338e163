"""Generalised advantage estimation, scanned backwards over time."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def gae(
    rewards: Float[Array, "t n"], values: Float[Array, "t+1 n"], gamma: float = 0.99, lam: float = 0.95
) -> Float[Array, "t n"]:
    deltas = rewards + gamma * values[1:] - values[:-1]  # bug: deltas = rewards + gamma * values[:, 1:] - values[:, :-1]

    def step(advantage, delta):
        advantage = delta + gamma * lam * advantage
        return advantage, advantage

    return jax.lax.scan(step, jnp.zeros(rewards.shape[1]), deltas, reverse=True)[1]


entry = gae


def sample():
    return gae(jnp.ones((4, 5)), jnp.ones((5, 5)))
