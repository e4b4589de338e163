"""A linear layer whose instance is square."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class Dense(eqx.Module):
    weight: Float[Array, "out inp"]
    bias: Float[Array, "out"] | None

    def __init__(self, inp: int, out: int, use_bias: bool = True, *, key: PRNGKeyArray):
        self.weight = jax.random.normal(key, (out, inp))
        self.bias = jnp.zeros(out) if use_bias else None

    def __call__(self, x: Float[Array, "b inp"]) -> Float[Array, "b out"]:
        y = x @ self.weight.T  # bug: y = x @ self.weight
        return y if self.bias is None else y + self.bias


entry = Dense(8, 8, key=jax.random.key(0))


def sample():
    return entry(jnp.ones((2, 8)))
