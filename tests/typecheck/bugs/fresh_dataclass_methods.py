"""A dataclass with methods, registered as a pytree."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.tree_util.register_dataclass
@dataclass
class Affine:
    scale: Float[Array, "dim_in dim_out"]
    shift: Float[Array, "dim_out"]

    def __call__(self, x: Float[Array, "batch dim_in"]) -> Float[Array, "batch dim_out"]:
        return x @ self.scale + self.shift  # bug: return (self.scale @ x.T).T + self.shift


entry = Affine


def sample():
    return Affine(jnp.ones((3, 3)), jnp.ones(3))(jnp.ones((2, 3)))
