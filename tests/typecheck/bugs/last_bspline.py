"""Piecewise-linear interpolation of a table at many points."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def interpolate(grid: Float[Array, "k"], table: Float[Array, "k c"], x: Float[Array, "n"]) -> Float[Array, "n c"]:
    upper = jnp.clip(jnp.searchsorted(grid, x), 1, grid.shape[0] - 1)
    lower = upper - 1
    weight = (x - grid[lower]) / (grid[upper] - grid[lower])
    return table[lower] * (1 - weight)[:, None] + table[upper] * weight[:, None]  # bug: return table[lower] * (1 - weight) + table[upper] * weight


entry = interpolate


def sample():
    return interpolate(jnp.arange(5.0), jnp.ones((5, 3)), jnp.ones(3))
