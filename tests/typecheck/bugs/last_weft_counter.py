"""A weft module with a running statistic that returns its successor."""

from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft.core import BatchStat, Module


class Whitening(Module):
    mean: Annotated[Float[Array, "c"], BatchStat]
    cov: Annotated[Float[Array, "c c"], BatchStat]
    momentum: float = 0.9

    def __call__(self, x: Float[Array, "b c"]) -> tuple[Float[Array, "b c"], "Whitening"]:
        mean = x.mean(axis=0)  # bug: mean = x.mean(axis=1)
        centred = x - mean
        cov = centred.T @ centred / x.shape[0]
        m = self.momentum
        new = self.replace(mean=m * self.mean + (1 - m) * mean, cov=m * self.cov + (1 - m) * cov)
        return centred @ jnp.linalg.inv(jnp.linalg.cholesky(self.cov)).T, new


entry = Whitening


def sample():
    return Whitening(jnp.zeros(4), jnp.eye(4))(jnp.ones((4, 4)))
