"""1D convolutions over embedded text with global max pooling."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def text_cnn(
    table: Float[Array, "v d"], kernel: Float[Array, "k d f"], ids: Int[Array, "b s"]
) -> Float[Array, "b f"]:
    x = table[ids]
    y = jax.lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    return jax.nn.relu(y).max(axis=1)  # bug: return jax.nn.relu(y).max(axis=2)


entry = text_cnn


def sample():
    return text_cnn(jnp.ones((9, 3)), jnp.ones((3, 3, 6)), jnp.zeros((2, 6), int))
