"""Power iteration under while_loop."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def spectral_norm(w: Float[Array, "o i"], u: Float[Array, "o"], steps: int = 5) -> Float[Array, ""]:
    def cond(state):
        return state[0] < steps

    def body(state):
        n, u, _ = state
        v = w.T @ u  # bug: v = w @ u
        v = v / jnp.linalg.norm(v)
        u = w @ v
        sigma = jnp.linalg.norm(u)
        return n + 1, u / sigma, sigma

    return jax.lax.while_loop(cond, body, (0, u, jnp.array(0.0)))[2]


entry = spectral_norm


def sample():
    return spectral_norm(jnp.ones((4, 4)), jnp.ones(4))
