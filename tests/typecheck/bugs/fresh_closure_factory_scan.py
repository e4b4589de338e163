"""A factory of recurrent rollouts around a given transition."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def make_rollout(horizon: int, noise: float):
    def rollout(
        key: PRNGKeyArray, a: Float[Array, "s s"], b: Float[Array, "s u"], policy: Float[Array, "u s"], s0: Float[Array, "s"]
    ) -> tuple[Float[Array, "horizon s"], Float[Array, "horizon u"]]:
        def step(s, k):
            u = policy @ s
            nxt = a @ s + b @ u + noise * jax.random.normal(k, s.shape)
            return nxt, (nxt, u)

        _, (states, actions) = jax.lax.scan(step, s0, jax.random.split(key, horizon))
        return states, actions  # bug: return states, actions.T

    return jax.jit(rollout)


entry = make_rollout(3, 0.1)


def sample():
    return entry(jax.random.key(0), jnp.eye(2), jnp.ones((2, 3)), jnp.ones((3, 2)), jnp.ones(2))
