"""Piecewise-linear interpolation of a table at many points."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def interpolate(grid: Float[Array, "k"], table: Float[Array, "k c"], x: Float[Array, "n"]) -> Float[Array, "n c"]:
    right = jnp.clip(jnp.searchsorted(grid, x), 1, grid.shape[0] - 1)
    left = right - 1
    weight = (x - grid[left]) / (grid[right] - grid[left])
    return table[left] * (1 - weight)[:, None] + table[right] * weight[:, None]  # bug: return table[left] * (1 - weight) + table[right] * weight


entry = interpolate


def sample():
    return interpolate(jnp.arange(5.0), jnp.ones((5, 3)), jnp.ones(3))
