"""A sweep of Gibbs sampling over rows of a lattice."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


def sweep(key: PRNGKeyArray, spins: Float[Array, "rows cols"], field: Float[Array, "cols"]) -> Float[Array, "rows cols"]:
    def step(carry: Float[Array, "cols"], inputs):
        row, k = inputs
        p = jax.nn.sigmoid(2 * (carry + jnp.roll(row, 1) + field))
        new = jnp.where(jax.random.uniform(k, p.shape) < p, 1.0, -1.0)
        return new, new

    keys = jax.random.split(key, spins.shape[0])
    _, out = jax.lax.scan(step, spins[-1], (spins, keys))  # bug: _, out = jax.lax.scan(step, spins[:, -1], (spins.T, keys))
    return out


entry = sweep


def sample():
    return sweep(jax.random.key(0), jnp.ones((4, 4)), jnp.zeros(4))
