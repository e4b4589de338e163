"""Mean squared error of a scalar regressor."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def mse(w: Float[Array, "d 1"], x: Float[Array, "b d"], y: Float[Array, "b"]) -> Float[Array, ""]:
    predictions = (x @ w)[:, 0]  # bug: predictions = x @ w
    return jnp.mean((predictions - y) ** 2)


def train_step(w: Float[Array, "d 1"], x: Float[Array, "b d"], y: Float[Array, "b"]) -> Float[Array, "d 1"]:
    return w - 0.1 * jax.grad(mse)(w, x, y)


entry = train_step


def sample():
    return train_step(jnp.ones((3, 1)), jnp.ones((5, 3)), jnp.ones(5))
