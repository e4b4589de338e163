"""Squeeze and excitation over channels-first images."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class SqueezeExcite(eqx.Module):
    down: eqx.nn.Linear
    up: eqx.nn.Linear

    def __init__(self, channels: int, ratio: int = 4, *, key: jax.Array):
        k1, k2 = jax.random.split(key)
        hidden = max(1, channels // ratio)
        self.down = eqx.nn.Linear(channels, hidden, key=k1)
        self.up = eqx.nn.Linear(hidden, channels, key=k2)

    def __call__(self, x: Float[Array, "channels height width"]) -> Float[Array, "channels height width"]:
        s = x.mean(axis=(1, 2))
        s = jax.nn.sigmoid(self.up(jax.nn.relu(self.down(s))))
        return x * s[:, None, None]  # bug: return x * s


entry = SqueezeExcite(8, key=jax.random.key(0))


def sample():
    return entry(jnp.ones((8, 8, 8)))
