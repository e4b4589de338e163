"""Fields annotated by arrays although they hold Variables, and with a bare `nnx.Param`."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Sloppy(nnx.Module):
    w: Float[Array, "i o"]
    b: nnx.Param
    steps: int

    def __init__(self, i: int, o: int, rngs: nnx.Rngs):
        self.w = nnx.Param(rngs.params.normal((i, o)))
        self.b = nnx.Param(jnp.zeros((o,)))
        self.steps = 0

    def __call__(self, x: Float[Array, "n i"]) -> Float[Array, "n o"]:
        return jnp.dot(x, self.w) + self.b

    def norms(self) -> Float[Array, "o"]:
        return jnp.linalg.norm(self.w[...], axis=0)  # bug: return jnp.linalg.norm(self.w[...], axis=1)


entry = Sloppy


def sample():
    return Sloppy(4, 4, nnx.Rngs(0)).norms()
