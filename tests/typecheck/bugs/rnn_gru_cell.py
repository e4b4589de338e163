"""A GRU cell with its three gates stacked in one weight."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class GRUCell(eqx.Module):
    w_in: Float[Array, "3*hidden inp"]
    w_rec: Float[Array, "3*hidden hidden"]
    bias: Float[Array, "3*hidden"]

    def __init__(self, inp: int, hidden: int, *, key: PRNGKeyArray):
        k1, k2 = jax.random.split(key)
        self.w_in = jax.random.normal(k1, (3 * hidden, inp))
        self.w_rec = jax.random.normal(k2, (3 * hidden, hidden))  # bug: self.w_rec = jax.random.normal(k2, (3 * hidden, inp))
        self.bias = jnp.zeros((3 * hidden,))

    def __call__(self, x: Float[Array, "inp"], h: Float[Array, "hidden"]) -> Float[Array, "hidden"]:
        r_x, z_x, n_x = jnp.split(self.w_in @ x + self.bias, 3)
        r_h, z_h, n_h = jnp.split(self.w_rec @ h, 3)
        r, z = jax.nn.sigmoid(r_x + r_h), jax.nn.sigmoid(z_x + z_h)
        n = jnp.tanh(n_x + r * n_h)
        return (1 - z) * n + z * h


entry = GRUCell


def sample():
    return GRUCell(4, 4, key=jax.random.key(0))(jnp.ones(4), jnp.zeros(4))
