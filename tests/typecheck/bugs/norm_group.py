"""Group normalisation of images, channels last."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def group_norm(x: Float[Array, "b h w c"], scale: Float[Array, "c"], groups: int = 2) -> Float[Array, "b h w c"]:
    b, h, w, c = x.shape
    grouped = x.reshape(b, h, w, groups, c // groups)  # bug: grouped = x.reshape(b, groups, h, w, c // groups)
    mean = grouped.mean(axis=(1, 2, 4), keepdims=True)  # bug: mean = grouped.mean(axis=(2, 3, 4), keepdims=True)
    var = grouped.var(axis=(1, 2, 4), keepdims=True)  # bug: var = grouped.var(axis=(2, 3, 4), keepdims=True)
    return ((grouped - mean) / jnp.sqrt(var + 1e-5)).reshape(x.shape) * scale


entry = group_norm


def sample():
    return group_norm(jnp.ones((2, 3, 3, 4)), jnp.ones(4))
