"""A GRU cell with its gates in one matrix."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class GRUCell(nnx.Module):
    def __init__(self, features: int, hidden: int, *, rngs: nnx.Rngs):
        self.inputs = nnx.Linear(features, 3 * hidden, rngs=rngs)
        self.recurrent = nnx.Linear(hidden, 3 * hidden, use_bias=False, rngs=rngs)

    def __call__(self, h: Float[Array, "b hidden"], x: Float[Array, "b features"]) -> Float[Array, "b hidden"]:
        xr, xz, xn = jnp.split(self.inputs(x), 3, axis=-1)
        hr, hz, hn = jnp.split(self.recurrent(h), 3, axis=-1)  # bug: hr, hz, hn = jnp.split(self.recurrent(h), 3, axis=0)
        r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
        return (1 - z) * jnp.tanh(xn + r * hn) + z * h


entry = GRUCell


def sample():
    return GRUCell(5, 4, rngs=nnx.Rngs(0))(jnp.ones((3, 4)), jnp.ones((3, 5)))
