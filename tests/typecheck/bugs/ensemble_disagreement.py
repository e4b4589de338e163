"""The variance of an ensemble's predictions, per example."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.jit
def disagreement(ws: Float[Array, "m i o"], x: Float[Array, "b i"]) -> Float[Array, "b"]:
    predictions = jax.vmap(lambda w: x @ w)(ws)
    return predictions.var(axis=0).mean(axis=-1)  # bug: return predictions.var(axis=1).mean(axis=-1)


entry = disagreement


def sample():
    return disagreement(jnp.ones((4, 3, 2)), jnp.ones((4, 3)))
