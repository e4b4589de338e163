"""Outer-product features of two views, flattened."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def fuse(a: Float[Array, "b p"], c: Float[Array, "b q"], w: Float[Array, "p*q o"]) -> Float[Array, "b o"]:
    outer = a[:, :, None] * c[:, None, :]  # bug: outer = a[:, None, :] * c[:, :, None]
    return outer.reshape(a.shape[0], a.shape[1] * c.shape[1]) @ w


entry = fuse


def sample():
    return fuse(jnp.ones((2, 3)), jnp.ones((2, 3)), jnp.ones((9, 4)))
