"""A weighted mean over a pytree of client updates."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def federated_mean(
    updates: dict[str, Float[Array, "clients _ _"]], weights: Float[Array, "clients"]
) -> dict[str, Float[Array, "_ _"]]:
    share = weights / weights.sum()
    return jax.tree.map(lambda u: jnp.einsum("cij,c->ij", u, share), updates)  # bug: return jax.tree.map(lambda u: jnp.einsum("cij,j->ci", u, share), updates)


entry = federated_mean


def sample():
    return federated_mean({"w": jnp.ones((3, 2, 3))}, jnp.ones(3))
