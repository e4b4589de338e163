"""A projection closed over by the step that it is used in."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def make_project(basis: Float[Array, "k d"]):
    def project(x: Float[Array, "b d"]) -> Float[Array, "b k"]:
        return x @ basis.T

    return project


def reconstruct(basis: Float[Array, "k d"], x: Float[Array, "b d"]) -> Float[Array, "b d"]:
    project = make_project(basis)
    return project(x) @ basis  # bug: return project(x) @ basis.T


entry = reconstruct


def sample():
    return reconstruct(jnp.eye(4), jnp.ones((3, 4)))
