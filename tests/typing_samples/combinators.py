"""What static checkers know of a combinator's call: `y` or `(y, successor)`, by the layer that it holds."""

from typing import Any, reveal_type

import jax
import jax.numpy as jnp
import weft
from jax import Array

KEY = jax.random.key(0)


class Pure(weft.Module):
    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        return x


class Stateful(weft.Module):
    def __call__(self, x: Array, *, key: Array) -> tuple[Array, "Stateful"]:
        return x, self


def make_pure(key: Any) -> Pure:
    return Pure()


def make_stateful(key: Any) -> Stateful:
    return Stateful()


def calls(x: Array) -> None:
    reveal_type(weft.Residual(Pure())(x))  # Array
    reveal_type(weft.Residual(Stateful())(x))  # tuple[Any, Residual[Stateful]]
    reveal_type(weft.Residual(weft.BatchNorm(4))(x))  # tuple[Any, Residual[BatchNorm]]
    reveal_type(weft.Residual(jnp.sin)(x))  # Array
    reveal_type(weft.Residual(weft.Sequential(Pure(), jax.nn.relu))(x))  # Array
    reveal_type(weft.Residual(weft.StatefulSequential(Pure()))(x))  # tuple[Any, Residual[StatefulSequential]]
    reveal_type(weft.Residual(weft.Residual(Pure()))(x))  # Array
    reveal_type(weft.Frozen(Pure())(x))  # Array
    reveal_type(weft.Frozen(Stateful()).layer)  # Stateful
    reveal_type(weft.Parallel(Pure(), jnp.sin)(x))  # tuple[Any, ...]
    reveal_type(weft.Parallel(Pure(), jnp.sin, merge=jnp.stack)(x))  # Array
    reveal_type(weft.StatefulParallel(Pure(), merge=jnp.stack)(x))  # tuple[Array, StatefulParallel[Array]]
    reveal_type(weft.StatefulSequential(Pure())(x))  # tuple[Any, StatefulSequential]
    reveal_type(weft.Lambda(jnp.sin)(x))  # Array


def copies(x: Array) -> None:
    reveal_type(weft.Stack(make_pure, 3, key=KEY)(x))  # Array
    reveal_type(weft.Stack(make_stateful, 3, key=KEY)(x, key=KEY))  # tuple[Any, Stack[Stateful]]
    reveal_type(weft.Stack(make_stateful, 3, key=KEY)[0])  # Stateful
    reveal_type(weft.Stack(make_stateful, 3, key=KEY)[1:])  # Stack[Stateful]
    reveal_type(weft.Ensemble(make_pure, 3, key=KEY)(x))  # Array
    reveal_type(weft.Ensemble(make_stateful, 3, key=KEY)(x))  # tuple[Any, Ensemble[Stateful]]
    reveal_type(weft.Ensemble(make_stateful, 3, key=KEY)[0])  # Stateful
    reveal_type(weft.Stack(lambda key: weft.Linear(4, 4, key=key), 3, key=KEY))  # Stack[Linear]


def convolutions() -> None:
    weft.Conv2d(3, 8, 3, strides=2, key=KEY)
    weft.Conv(3, 8, (3, 3), key=KEY)
    weft.Conv(3, 8, 3, key=KEY)  # error: "Literal[3]" is not assignable to "Sequence[int]"
    weft.Conv2d(3, 8, 3, stride=2, key=KEY)  # error: No parameter named "stride"
