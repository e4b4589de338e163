"""A dense layer of NNX whose instance is square."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Dense(nnx.Module):
    w: nnx.Param[Float[Array, "din dout"]]
    b: nnx.Param[Float[Array, "dout"]]

    def __init__(self, din: int, dout: int, *, rngs: nnx.Rngs):
        self.w = nnx.Param(nnx.initializers.lecun_normal()(rngs.params(), (din, dout)))
        self.b = nnx.Param(jnp.zeros(dout))

    def __call__(self, x: Float[Array, "*batch din"]) -> Float[Array, "*batch dout"]:
        return x @ self.w + self.b  # bug: return x @ self.w.T + self.b


entry = Dense(4, 4, rngs=nnx.Rngs(0))


def sample():
    return entry(jnp.ones((3, 4)))
