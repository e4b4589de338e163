"""An LSTM whose carry is a NamedTuple."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Carry(NamedTuple):
    c: Float[Array, "b h"]
    h: Float[Array, "b h"]


class Weights(NamedTuple):
    wx: Float[Array, "i 4*h"]
    wh: Float[Array, "h 4*h"]


def lstm(weights: Weights, xs: Float[Array, "t b i"], carry: Carry) -> tuple[Carry, Float[Array, "t b h"]]:
    def step(carry: Carry, x: Float[Array, "b i"]) -> tuple[Carry, Float[Array, "b h"]]:
        gates = x @ weights.wx + carry.h @ weights.wh  # bug: gates = carry.h @ weights.wx + x @ weights.wh
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = jax.nn.sigmoid(f) * carry.c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return Carry(c, h), h

    return jax.lax.scan(step, carry, xs)


entry = lstm


def sample():
    zeros = jnp.zeros((2, 3))
    return lstm(Weights(jnp.ones((3, 12)), jnp.ones((3, 12))), jnp.ones((5, 2, 3)), Carry(zeros, zeros))
