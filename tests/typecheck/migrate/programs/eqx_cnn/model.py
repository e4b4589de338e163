from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class CNN(eqx.Module):
    layers: list
    activation: Callable
    rate: float = 0.5

    def __init__(self, key: PRNGKeyArray):
        key1, key2 = jax.random.split(key)
        self.layers = [eqx.nn.Conv2d(1, 3, 3, key=key1), eqx.nn.MaxPool2d(2), jnp.ravel, eqx.nn.Linear(27, 3, key=key2)]
        self.activation = jax.nn.relu

    def __call__(self, x: Float[Array, "1 6 6"]) -> Float[Array, "3"]:
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return jax.nn.log_softmax(self.layers[-1](x) * self.rate)
