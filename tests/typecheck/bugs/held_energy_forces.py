"""Forces as gradients of a pair potential."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def energy(x: Float[Array, "n 3"], charges: Float[Array, "n"]) -> Float[Array, ""]:
    diff = x[:, None] - x[None, :]
    r = jnp.sqrt(jnp.sum(diff**2, axis=-1) + 1e-6)
    pair = charges[:, None] * charges[None, :] / r
    return 0.5 * pair.sum()


def accelerations(x: Float[Array, "n 3"], charges: Float[Array, "n"], mass: Float[Array, "n"]) -> Float[Array, "n 3"]:
    forces = -jax.grad(energy)(x, charges)
    return forces / mass[:, None]  # bug: return forces / mass


entry = accelerations


def sample():
    return accelerations(jnp.ones((3, 3)), jnp.ones(3), jnp.ones(3))
