"""Exponential smoothing whose state is a Variable made on the first call."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Smoother(nnx.Module):
    rate: nnx.Param[Float[Array, "c"]]

    def __init__(self, c: int):
        self.rate = nnx.Param(jnp.full(c, 0.5))
        self.state = nnx.Variable(None)

    def __call__(self, x: Float[Array, "b c"]) -> Float[Array, "b c"]:
        previous = self.state.get_value()
        y = x if previous is None else self.rate * x + (1 - self.rate) * previous
        self.state.set_value(y)
        return y

    def run(self, xs: Float[Array, "t b c"]) -> Float[Array, "t b c"]:
        return jnp.stack([self(x) for x in (xs[0], xs[-1])] + [self(xs[0])] * (xs.shape[0] - 2))[: xs.shape[0]]

    def level(self, x: Float[Array, "b c"]) -> Float[Array, "c"]:
        return self(x).mean(axis=0)  # bug: return self(x).mean(axis=1)


entry = Smoother


def sample():
    return Smoother(4).level(jnp.ones((4, 4)))
