"""Batch normalisation that keeps running statistics."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Norm(nnx.Module):
    scale: nnx.Param[Float[Array, "c"]]
    mean: nnx.BatchStat[Float[Array, "c"]]
    var: nnx.BatchStat[Float[Array, "c"]]

    def __init__(self, c: int, *, momentum: float = 0.9):
        self.scale = nnx.Param(jnp.ones(c))
        self.mean = nnx.BatchStat(jnp.zeros(c))
        self.var = nnx.BatchStat(jnp.ones(c))
        self.momentum = momentum

    def __call__(self, x: Float[Array, "b c"], train: bool = True) -> Float[Array, "b c"]:
        if train:
            m = self.momentum
            self.mean[...] = m * self.mean + (1 - m) * x.mean(axis=0)  # bug: self.mean[...] = m * self.mean + (1 - m) * x.mean(axis=1)
            self.var[...] = m * self.var + (1 - m) * x.var(axis=0)
        return self.scale * (x - self.mean) / jnp.sqrt(self.var + 1e-5)


entry = Norm


def sample():
    return Norm(4)(jnp.ones((4, 4)))
