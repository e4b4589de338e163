"""Layer normalisation over the last axis, any batch axes before it."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class LayerNorm(eqx.Module):
    scale: Float[Array, "d"]
    offset: Float[Array, "d"]
    eps: float = eqx.field(static=True, default=1e-5)

    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        mean = x.mean(axis=-1, keepdims=True)
        var = x.var(axis=-1, keepdims=True)  # bug: var = x.var(axis=-1)
        return (x - mean) / jnp.sqrt(var + self.eps) * self.scale + self.offset


entry = LayerNorm


def sample():
    return LayerNorm(jnp.ones(4), jnp.zeros(4))(jnp.ones((4, 4)))
