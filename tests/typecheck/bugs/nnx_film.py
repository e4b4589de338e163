"""Features scaled and shifted by a condition."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Film(nnx.Module):
    def __init__(self, d: int, k: int, *, rngs: nnx.Rngs):
        self.affine = nnx.Linear(k, 2 * d, rngs=rngs)

    def __call__(self, x: Float[Array, "b s d"], condition: Float[Array, "b k"]) -> Float[Array, "b s d"]:
        scale, shift = jnp.split(self.affine(condition), 2, axis=-1)
        return x * scale[:, None] + shift[:, None]  # bug: return x * scale + shift


entry = Film


def sample():
    return Film(3, 2, rngs=nnx.Rngs(0))(jnp.ones((4, 4, 3)), jnp.ones((4, 2)))
