"""An Elman RNN scanned over time-major inputs."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rnn(
    xs: Float[Array, "b t i"], w: Float[Array, "i h"], u: Float[Array, "h h"], h0: Float[Array, "b h"]
) -> Float[Array, "b t h"]:
    def step(h: Float[Array, "b h"], x: Float[Array, "b i"]) -> tuple[Float[Array, "b h"], Float[Array, "b h"]]:
        h = jnp.tanh(x @ w + h @ u)
        return h, h

    _, hs = jax.lax.scan(step, h0, xs.swapaxes(0, 1))  # bug: _, hs = jax.lax.scan(step, h0, xs)
    return hs.swapaxes(0, 1)


entry = rnn


def sample():
    return rnn(jnp.ones((4, 4, 3)), jnp.ones((3, 5)), jnp.ones((5, 5)), jnp.zeros((4, 5)))
