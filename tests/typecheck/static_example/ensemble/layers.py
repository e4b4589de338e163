"""Records with kinds, links of dims, config, and a successor."""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import BatchStat, Module, static
from weft.typecheck import Dims


class Linear(Module):
    weight: Float[Array, "out in"]
    bias: Float[Array, "out"] | None
    name: str = static(default="linear")

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias

    def without_bias(self) -> Linear:
        return self.replace(bias=None)


class RunningNorm(Module):
    mean: Annotated[Float[Array, "features"], BatchStat]
    momentum: float = static(default=0.9)

    def __call__(self, x: Float[Array, "batch features"]) -> tuple[Float[Array, "batch features"], RunningNorm]:
        mean = self.momentum * self.mean + (1 - self.momentum) * x.mean(axis=0)
        return x - mean, self.replace(mean=mean)


class Encoder(Module):
    up: Annotated[Linear, Dims("in=width out=hidden")]
    down: Annotated[Linear, Dims("in=hidden out=width")]
    norm: Annotated[RunningNorm, Dims("features=width")]

    def __call__(self, x: Float[Array, "batch width"]) -> tuple[Float[Array, "batch width"], Encoder]:
        y, norm = self.norm(self.down(jax.nn.relu(self.up(x))))
        return y, self.replace(norm=norm)


def make_encoder(width: int, hidden: int) -> Encoder:
    return Encoder(
        up=Linear(jnp.ones((hidden, width)), None),
        down=Linear(jnp.ones((width, hidden)), jnp.zeros(width)),
        norm=RunningNorm(jnp.zeros(width)),
    )
