"""A small convolutional network with `nnx.BatchNorm`, pooled to one vector an image."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class ConvNet(nnx.Module):
    def __init__(self, channels: int, width: int, classes: int, *, rngs: nnx.Rngs):
        self.conv = nnx.Conv(channels, width, kernel_size=(3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, images: Float[Array, "b h w channels"]) -> Float[Array, "b classes"]:
        x = nnx.relu(self.norm(self.conv(images)))
        return self.head(x.mean(axis=(1, 2)))  # bug: return self.head(x).mean(axis=(0, 2))


entry = ConvNet


def sample():
    return ConvNet(3, 4, 10, rngs=nnx.Rngs(0))(jnp.ones((6, 6, 6, 3)))
