"""A recurrent cell under `nnx.scan`, over a sequence that has its batch first."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Cell(nnx.Module):
    wx: nnx.Param[Float[Array, "i h"]]
    wh: nnx.Param[Float[Array, "h h"]]

    def __init__(self, i: int, h: int, *, rngs: nnx.Rngs):
        self.wx = nnx.Param(rngs.params.normal((i, h)))
        self.wh = nnx.Param(nnx.initializers.orthogonal()(rngs.params(), (h, h)))

    def __call__(self, carry: Float[Array, "b h"], x: Float[Array, "b i"]) -> Float[Array, "b h"]:
        return jnp.tanh(x @ self.wx + carry @ self.wh)


class Rnn(nnx.Module):
    def __init__(self, i: int, h: int, *, rngs: nnx.Rngs):
        self.cell = Cell(i, h, rngs=rngs)
        self.h = h

    def __call__(self, xs: Float[Array, "b t i"]) -> Float[Array, "b t h"]:
        @nnx.scan(in_axes=(None, nnx.Carry, 1), out_axes=(nnx.Carry, 1))  # bug: @nnx.scan(in_axes=(None, nnx.Carry, 1), out_axes=(nnx.Carry, 0))
        def run(cell, carry, x):
            carry = cell(carry, x)
            return carry, carry

        return run(self.cell, jnp.zeros((xs.shape[0], self.h)), xs)[1]


entry = Rnn


def sample():
    return Rnn(3, 5, rngs=nnx.Rngs(0))(jnp.ones((4, 4, 3)))
