"""A convolutional encoder made of equinox layers."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Encoder(eqx.Module):
    conv1: eqx.nn.Conv2d
    conv2: eqx.nn.Conv2d
    head: eqx.nn.Linear

    def __init__(self, channels: int, width: int, out: int, *, key: jax.Array):
        k1, k2, k3 = jax.random.split(key, 3)
        self.conv1 = eqx.nn.Conv2d(channels, width, 3, padding=1, key=k1)
        self.conv2 = eqx.nn.Conv2d(width, width, 3, stride=2, padding=1, key=k2)
        self.head = eqx.nn.Linear(width, out, key=k3)

    def __call__(self, img: Float[Array, "channels h w"]) -> Float[Array, "out"]:
        y = jax.nn.relu(self.conv1(img))
        y = jax.nn.relu(self.conv2(y))
        return self.head(y.mean(axis=(1, 2)))  # bug: return self.head(y.mean(axis=(0, 1)))


entry = Encoder


def sample():
    return Encoder(3, 4, 5, key=jax.random.key(0))(jnp.ones((3, 8, 8)))
