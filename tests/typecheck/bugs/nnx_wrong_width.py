"""A tower whose second layer must take what the first one gives."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Tower(nnx.Module):
    def __init__(self, din: int, hidden: int, dout: int, *, rngs: nnx.Rngs):
        self.a = nnx.Linear(din, hidden, rngs=rngs)
        self.norm = nnx.LayerNorm(hidden, rngs=rngs)  # bug: self.norm = nnx.LayerNorm(din, rngs=rngs)
        self.b = nnx.Linear(hidden, dout, rngs=rngs)

    def __call__(self, x: Float[Array, "b din"]) -> Float[Array, "b dout"]:
        return self.b(nnx.relu(self.norm(self.a(x))))


entry = Tower


def sample():
    return Tower(4, 4, 2, rngs=nnx.Rngs(0))(jnp.ones((3, 4)))
