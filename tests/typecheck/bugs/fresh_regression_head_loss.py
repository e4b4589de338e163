"""Mean squared error of a head that gives one number for each example."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Regressor(eqx.Module):
    hidden: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, in_size: int, width: int, *, key: jax.Array):
        k1, k2 = jax.random.split(key)
        self.hidden = eqx.nn.Linear(in_size, width, key=k1)
        self.head = eqx.nn.Linear(width, 1, key=k2)

    def __call__(self, x: Float[Array, "in_size"]) -> Float[Array, "1"]:
        return self.head(jax.nn.gelu(self.hidden(x)))

    def loss(self, xs: Float[Array, "batch in_size"], ys: Float[Array, "batch"]) -> Float[Array, ""]:
        pred = jax.vmap(self)(xs)
        return jnp.mean((pred[:, 0] - ys) ** 2)  # bug: return jnp.mean((pred - ys) ** 2)


entry = Regressor


def sample():
    return Regressor(3, 8, key=jax.random.key(0)).loss(jnp.ones((4, 3)), jnp.ones(4))
