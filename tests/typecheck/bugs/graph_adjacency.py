"""A graph convolution with a symmetrically normalised adjacency matrix."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def gcn(adj: Float[Array, "n n"], x: Float[Array, "n i"], w: Float[Array, "i o"]) -> Float[Array, "n o"]:
    degree = adj.sum(axis=1)
    norm = adj / jnp.sqrt(degree[:, None] * degree[None, :])
    return norm @ x @ w  # bug: return (x @ w).T @ norm


entry = gcn


def sample():
    return gcn(jnp.ones((4, 4)), jnp.ones((4, 4)), jnp.ones((4, 4)))
