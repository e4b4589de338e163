"""Feature-wise modulation of an image by a condition."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def film(
    x: Float[Array, "b h w c"], cond: Float[Array, "b k"], w_scale: Float[Array, "k c"], w_shift: Float[Array, "k c"]
) -> Float[Array, "b h w c"]:
    scale = (cond @ w_scale)[:, None, None, :]
    shift = (cond @ w_shift)[:, None, None, :]  # bug: shift = (cond @ w_shift)[:, None, :]
    return x * (1 + scale) + shift


entry = film


def sample():
    return film(jnp.ones((4, 4, 4, 3)), jnp.ones((4, 5)), jnp.ones((5, 3)), jnp.ones((5, 3)))
