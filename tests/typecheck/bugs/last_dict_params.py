"""An MLP whose parameters are a list of dictionaries."""

from typing import TypedDict

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Layer(TypedDict):
    w: Float[Array, "inp out"]
    b: Float[Array, "out"]


def apply_layer(layer: Layer, x: Float[Array, "n inp"]) -> Float[Array, "n out"]:
    return x @ layer["w"] + layer["b"]  # bug: return x @ layer["w"].T + layer["b"]


def mlp(layers: list[Layer], x: Float[Array, "n features"]) -> Float[Array, "n _"]:
    for layer in layers[:-1]:
        x = jax.nn.relu(apply_layer(layer, x))
    return apply_layer(layers[-1], x)


entry = mlp


def sample():
    layer: Layer = {"w": jnp.ones((4, 4)), "b": jnp.ones(4)}
    return mlp([layer, layer], jnp.ones((2, 4)))
