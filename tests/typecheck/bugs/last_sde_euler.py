"""Euler-Maruyama with a key a step, many paths at once."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def simulate(
    key: PRNGKeyArray, x0: Float[Array, "paths d"], sigma: Float[Array, "d d"], num_steps: int, dt: float = 0.01
) -> Float[Array, "num_steps paths d"]:
    def step(x, k):
        noise = jax.random.normal(k, x.shape)
        x = x - x * dt + jnp.sqrt(dt) * noise @ sigma.T
        return x, x

    _, path = jax.lax.scan(step, x0, jax.random.split(key, num_steps))
    return path  # bug: return path.swapaxes(0, 1)


entry = simulate


def sample():
    return simulate(jax.random.key(0), jnp.ones((4, 2)), jnp.eye(2), 4)
