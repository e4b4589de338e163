"""Layers to build combinators from: a pure one, one with state, one that drops."""

from __future__ import annotations

from typing import Annotated, Any, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft.core import Buffer, Module, thread
from weft.modules import BatchNorm, Dropout, Linear

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (5, 4))


class Dense(Module):
    """Pure; with a dropout that only works if a key is given."""

    linear: Linear
    dropout: Dropout

    def __init__(self, size: int = 4, *, key: Any):
        self.linear, self.dropout = Linear(size, size, key=key), Dropout(0.5)

    def __call__(self, x: Any, scale: Any = 1.0, *, key: Any = None, skip: bool = False) -> Any:
        if skip:  # fails if the flag were traced
            return x
        y = jax.nn.tanh(self.linear(x)) * scale
        return y if key is None else self.dropout(y, key=key)


class Counted(Module):
    """Stateful; counts its calls, and scales by a parameter of its own."""

    linear: Linear
    calls: Annotated[Float[Array, ""], Buffer]

    def __init__(self, size: int = 4, *, key: Any):
        self.linear, self.calls = Linear(size, size, key=key), jnp.zeros(())

    def __call__(self, x: Any) -> tuple[Any, Self]:
        return jax.nn.tanh(self.linear(x)), self.replace(calls=self.calls + 1)


class Normed(Module):
    """Stateful; a linear layer and a BatchNorm."""

    linear: Linear
    norm: BatchNorm

    def __init__(self, size: int = 4, *, key: Any, axis_name: Any = None):
        self.linear, self.norm = Linear(size, size, key=key), BatchNorm(size, axis_name=axis_name)

    def __call__(self, x: Any) -> tuple[Any, Self]:
        with thread(self) as t:
            return t.done(t.norm(t.linear(x)))
