"""A deep network whose identical layers are stacked and scanned."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class Deep(eqx.Module):
    weights: Float[Array, "depth width width"]
    biases: Float[Array, "depth width"]
    readout: Float[Array, "width classes"]

    def __init__(self, width: int, depth: int, classes: int, *, key: PRNGKeyArray):
        self.weights = jax.random.normal(key, (depth, width, width))
        self.biases = jnp.zeros((depth, width))  # bug: self.biases = jnp.zeros((width, depth))
        self.readout = jnp.zeros((width, classes))

    def __call__(self, x: Float[Array, "width"]) -> Float[Array, "classes"]:
        def layer(h, wb):
            w, b = wb
            return jax.nn.relu(h @ w + b), None

        h, _ = jax.lax.scan(layer, x, (self.weights, self.biases))
        return h @ self.readout


entry = Deep


def sample():
    return Deep(4, 4, 2, key=jax.random.key(0))(jnp.ones(4))
