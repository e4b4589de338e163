"""Normalisation over groups of channels."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Groups(nnx.Module):
    scale: nnx.Param[Float[Array, "c"]]

    def __init__(self, c: int, groups: int):
        self.scale = nnx.Param(jnp.ones(c))
        self.groups = groups

    def __call__(self, x: Float[Array, "b n c"]) -> Float[Array, "b n c"]:
        b, n, c = x.shape
        g = x.reshape(b, n, self.groups, c // self.groups)
        mean = g.mean(axis=(1, 3), keepdims=True)
        g = (g - mean) / jnp.sqrt(g.var(axis=(1, 3), keepdims=True) + 1e-5)
        return g.reshape(x.shape) * self.scale  # bug: return g.reshape(x.shape) * self.scale[:, None]


entry = Groups


def sample():
    return Groups(4, 2)(jnp.ones((3, 4, 4)))
