"""Shapes that refer to the module's own attributes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Heads(nnx.Module):
    def __init__(self, width: int, n_heads: int, *, rngs: nnx.Rngs):
        self.width, self.n_heads = width, n_heads
        self.proj = nnx.Linear(width, width, rngs=rngs)

    def split(self, x: Float[Array, "b s {self.width}"]) -> Float[Array, "b {self.n_heads} s {self.width//self.n_heads}"]:
        b, s, _ = x.shape
        y = self.proj(x).reshape(b, s, self.n_heads, -1)
        return y.transpose(0, 2, 1, 3)  # bug: return y.transpose(0, 1, 2, 3)


entry = Heads


def sample():
    return Heads(8, 4, rngs=nnx.Rngs(0)).split(jnp.ones((2, 4, 8)))
