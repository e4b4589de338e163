"""A regression loss over an NNX model with one output."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Regressor(nnx.Module):
    def __init__(self, d: int, width: int, *, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(d, width, rngs=rngs)
        self.out = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b 1"]:
        return self.out(nnx.relu(self.hidden(x)))


def loss(model: Regressor, x: Float[Array, "b d"], y: Float[Array, "b"]) -> Float[Array, ""]:
    prediction = model(x)[:, 0]  # bug: prediction = model(x)
    return jnp.mean((prediction - y) ** 2)


entry = loss


def sample():
    return loss(Regressor(3, 5, rngs=nnx.Rngs(0)), jnp.ones((4, 3)), jnp.ones(4))
