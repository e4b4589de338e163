"""Bag-of-words sums with segment ids."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def bag(
    table: Float[Array, "v d"], ids: Int[Array, "n"], bags: Int[Array, "n"], num_bags: int
) -> Float[Array, "num_bags d"]:
    rows = table[ids]  # bug: rows = table.T[ids]
    return jax.ops.segment_sum(rows, bags, num_segments=num_bags)


entry = bag


def sample():
    return bag(jnp.ones((4, 4)), jnp.zeros(6, int), jnp.zeros(6, int), 3)
