"""Sequential: one layer after another.

Whether a chain has state shows in its class, so that readers and type checkers know what a call returns:

| class | layers | a call returns |
|---|---|---|
| `Sequential` | pure ones, and functions | `y` |
| `StatefulSequential` | any | `(y, successor)` |
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Self

import equinox as eqx
import jax
from jaxtyping import Array, Key, PyTree
from weft.core.errors import SuccessorError
from weft.core.keys import SeedError
from weft.core.module import Module
from weft.core.successors import check_successor

Layer = Callable[..., Any]


class _Chain(Module):
    layers: tuple[Layer, ...]

    def __init__(self, *layers: Layer):
        self.layers = layers

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __getitem__(self, index: int) -> Layer:
        return self.layers[index]

    def _steps(self, x: Any, key: Any, call: dict[str, Any]) -> Iterator[tuple[int, Layer, dict[str, Any]]]:
        wants_key = [_takes_key(layer) for layer in self.layers]
        if key is not None and isinstance(key, Module):
            raise SeedError(
                f"{type(self).__qualname__} takes a typed key, not a {type(key).__name__}: it could not hand back the "
                "successor",
                fix='key, keys = keys.next("dropout"), then key=key',
            )
        keys = iter(jax.random.split(key, sum(wants_key))) if key is not None and any(wants_key) else None
        for index, (layer, wants) in enumerate(zip(self.layers, wants_key, strict=True)):
            yield index, layer, {"key": next(keys)} if wants and keys is not None else {}


class Sequential(_Chain):
    """Pure layers and functions, one after another: `y = chain(x)`.

    Args:
        layers: records or plain functions, such as `jax.nn.relu`.

    >>> import jax, jax.numpy as jnp
    >>> from weft.modules import Dropout, Linear
    >>> first, second = jax.random.split(jax.random.key(0))
    >>> chain = Sequential(Linear(3, 8, key=first), jax.nn.relu, Dropout(0.1), Linear(8, 2, key=second))
    >>> chain(jnp.ones((5, 3)), key=jax.random.key(1)).shape
    (5, 2)
    """

    def __call__(self, x: PyTree, *, key: Key[Array, ""] | None = None) -> Any:
        """Calls each layer with what the one before returned.

        Args:
            x: what the first layer takes.
            key: a typed key, split among the layers whose call has a `key` argument.

        Raises:
            SuccessorError: if a layer turns out to be stateful.
        """
        for index, layer, options in self._steps(x, key, {}):
            result = layer(x, **options)
            if _is_pair(result, layer):
                raise SuccessorError(
                    f"a {type(layer).__qualname__} is stateful, and Sequential would lose its successor",
                    at=f"layers[{index}]",
                    fix="use StatefulSequential, whose call returns (y, successor)",
                )
            x = result
        return x


class StatefulSequential(_Chain):
    """Layers of any sort, one after another: `y, chain = chain(x)`.

    Args:
        layers: records, pure or stateful, or plain functions.

    >>> import jax, jax.numpy as jnp
    >>> from weft.modules import BatchNorm, Linear
    >>> chain = StatefulSequential(Linear(3, 4, key=jax.random.key(0)), BatchNorm(4), jax.nn.relu)
    >>> y, chain = chain(jnp.ones((5, 3)))
    >>> y.shape
    (5, 4)
    """

    def __call__(self, x: PyTree, *, key: Key[Array, ""] | None = None) -> tuple[Any, Self]:
        """Calls each layer with what the one before returned, and keeps the successors.

        Args:
            x: what the first layer takes.
            key: a typed key, split among the layers whose call has a `key` argument.

        Raises:
            SuccessorError: if a layer's successor is of another structure.
        """
        layers = list(self.layers)
        for index, layer, options in self._steps(x, key, {}):
            x = layer(x, **options)
            if _is_pair(x, layer):
                x, layers[index] = x
                check_successor(layer, layers[index], f"layers[{index}]")
        changed = any(new is not old for new, old in zip(layers, self.layers, strict=True))
        return x, self.replace(layers=tuple(layers)) if changed else self


def _is_pair(result: Any, layer: Any) -> bool:
    return (
        type(result) is tuple and len(result) == 2 and isinstance(layer, eqx.Module) and type(result[1]) is type(layer)
    )


def _takes_key(layer: Layer) -> bool:
    return _signature_takes_key(type(layer).__call__ if isinstance(layer, eqx.Module) else layer)


@functools.cache
def _signature_takes_key(function: Any) -> bool:
    try:
        return "key" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # built-in functions may have no signature
        return False
