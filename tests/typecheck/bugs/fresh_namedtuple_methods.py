"""A normal-inverse-gamma belief with its update as a method."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class LinearBelief(NamedTuple):
    precision: Float[Array, "p p"]
    weighted: Float[Array, "p"]

    def update(self, x: Float[Array, "n p"], y: Float[Array, "n"]) -> "LinearBelief":
        return LinearBelief(self.precision + x.T @ x, self.weighted + x.T @ y)  # bug: return LinearBelief(self.precision + x @ x.T, self.weighted + x.T @ y)

    def mean(self) -> Float[Array, "p"]:
        return jnp.linalg.solve(self.precision, self.weighted)


entry = LinearBelief.update


def sample():
    return LinearBelief(jnp.eye(3), jnp.zeros(3)).update(jnp.ones((3, 3)), jnp.ones(3))
