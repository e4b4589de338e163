"""Records that the tests of contracts share."""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import Module, static
from weft.typecheck import Batched, Dims


class Linear(Module):
    weight: Float[Array, "out in"]
    bias: Float[Array, "out"] | None = None

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias


class Single(Module):
    """Takes one example."""

    weight: Float[Array, "out in"]

    def __call__(self, x: Float[Array, "in"]) -> Float[Array, "out"]:
        return self.weight @ x


class MLP(Module):
    up: Annotated[Linear, Dims("in=width out=hidden")]
    down: Annotated[Linear, Dims("in=hidden out=width")]

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        return self.down(self.up(x))


class Projection(Module):
    width: int = static()
    weight: Float[Array, "{self.width} 2*{self.width}"]

    def __call__(self, x: Float[Array, "n {self.width}"]) -> Float[Array, "n 2*width"]:
        return x @ self.weight


class Deep(Module):
    layers: Batched[Linear, "depth"]


def linear(out: int, inside: int) -> Linear:
    return Linear(jnp.ones((out, inside)), jnp.ones(out))


def stack(depth: int, out: int, inside: int) -> Linear:
    return jax.vmap(lambda scale: Linear(scale * jnp.ones((out, inside)), scale * jnp.ones(out)))(jnp.ones(depth))
