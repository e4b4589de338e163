"""The log-determinant of a map's Jacobian, per example."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def log_det(f: Callable[[Float[Array, "d"]], Float[Array, "d"]], xs: Float[Array, "b d"]) -> Float[Array, "b"]:
    jacobians = jax.vmap(jax.jacfwd(f))(xs)
    _, value = jnp.linalg.slogdet(jacobians)  # bug: _, value = jnp.linalg.slogdet(jacobians.mean(axis=0))
    return value


entry = log_det


def sample():
    return log_det(jnp.sin, jnp.ones((3, 2)))
