"""A 2D convolution with a per-channel bias, NHWC."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def conv(
    x: Float[Array, "b h w cin"], kernel: Float[Array, "kh kw cin cout"], bias: Float[Array, "cout"]
) -> Float[Array, "b h w cout"]:
    numbers = ("NHWC", "HWIO", "NHWC")  # bug: numbers = ("NHWC", "HWOI", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers) + bias


entry = conv


def sample():
    return conv(jnp.ones((1, 5, 6, 4)), jnp.ones((3, 3, 4, 4)), jnp.zeros(4))
