"""A function over a model that lives in the module."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx

model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
scale = jnp.ones(4)


def predict(x: Float[Array, "b i"]) -> Float[Array, "b o"]:
    return model(x) * scale  # bug: return (model(x) * scale).T


entry = predict


def sample():
    return predict(jnp.ones((4, 4)))
