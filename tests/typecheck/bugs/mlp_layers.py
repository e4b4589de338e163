"""An MLP made of two linear layers of its own class."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class Linear(eqx.Module):
    weight: Float[Array, "out_dim in_dim"]
    bias: Float[Array, "out_dim"]

    def __init__(self, in_dim: int, out_dim: int, *, key: PRNGKeyArray):
        self.weight = jax.random.normal(key, (out_dim, in_dim)) / in_dim**0.5
        self.bias = jnp.zeros((out_dim,))

    def __call__(self, x: Float[Array, "*batch in_dim"]) -> Float[Array, "*batch out_dim"]:
        return x @ self.weight.T + self.bias


class MLP(eqx.Module):
    first: Linear
    second: Linear

    def __init__(self, features: int, hidden: int, classes: int, *, key: PRNGKeyArray):
        k1, k2 = jax.random.split(key)
        self.first = Linear(features, hidden, key=k1)
        self.second = Linear(hidden, classes, key=k2)  # bug: self.second = Linear(classes, hidden, key=k2)

    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch classes"]:
        return self.second(jax.nn.relu(self.first(x)))


entry = MLP


def sample():
    return MLP(5, 8, 8, key=jax.random.key(0))(jnp.ones((2, 5)))
