"""Euler steps of an augmented ODE with a fixed number of steps."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def dynamics(w: Float[Array, "d+a d+a"], z: Float[Array, "d+a"]) -> Float[Array, "d+a"]:
    return jnp.tanh(w @ z)


def integrate(
    w: Float[Array, "d+a d+a"], x: Float[Array, "d"], pad: Float[Array, "a"], steps: int = 4
) -> Float[Array, "steps d"]:
    def step(z, _):
        z = z + dynamics(w, z) / steps
        return z, z[: x.shape[0]]  # bug: return z, z[x.shape[0] :]

    return jax.lax.scan(step, jnp.concatenate([x, pad]), length=steps)[1]


entry = integrate


def sample():
    return integrate(jnp.ones((4, 4)), jnp.ones(2), jnp.ones(2))
