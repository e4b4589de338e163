"""Sequential: one layer after another.

Whether a chain has state shows in its class, so that readers and type checkers know what a call returns:

| class | layers | a call returns |
|---|---|---|
| `Sequential` | pure ones, and functions | `y` |
| `StatefulSequential` | any | `(y, successor)` |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self, overload

from jaxtyping import Array, Key, PyTree
from weft.core.errors import SuccessorError
from weft.core.module import Module
from weft.modules.calling import Layer, PureOutput, call_layer, check_call_key, split_among


class _Chain(Module):
    layers: tuple[Layer, ...]

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    @overload
    def __getitem__(self, index: int) -> Layer: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.replace(layers=self.layers[index]) if isinstance(index, slice) else self.layers[index]

    def _steps(self, x: Any, key: Any) -> Iterator[tuple[int, Any, Any]]:
        check_call_key(key, type(self).__qualname__)
        for index, (layer, options) in enumerate(zip(self.layers, split_among(self.layers, key), strict=True)):
            x, successor = call_layer(layer, f"layers[{index}]", x, **options)
            yield index, x, successor


# Each of the two writes its constructor out: a class that inherits one has, for checkers, that of a dataclass.
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

    def __init__(self, *layers: Layer):
        self.layers = layers

    def __call__(self, x: PyTree, *, key: Key[Array, ""] | None = None) -> PureOutput:
        """Calls each layer with what the one before returned.

        Args:
            x: what the first layer takes.
            key: a typed key, split among the layers whose call has a `key` argument.

        Raises:
            SuccessorError: if a layer turns out to be stateful.
        """
        for index, value, successor in self._steps(x, key):
            if successor is not None:
                raise SuccessorError(
                    f"a {type(self.layers[index]).__qualname__} is stateful, and Sequential would lose its successor",
                    at=f"layers[{index}]",
                    fix="use StatefulSequential, whose call returns (y, successor)",
                )
            x = value
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

    def __init__(self, *layers: Layer):
        self.layers = layers

    def __call__(self, x: PyTree, *, key: Key[Array, ""] | None = None) -> tuple[Any, Self]:
        """Calls each layer with what the one before returned, and keeps the successors.

        Args:
            x: what the first layer takes.
            key: a typed key, split among the layers whose call has a `key` argument.

        Raises:
            SuccessorError: if a layer's successor is of another structure.
        """
        layers = list(self.layers)
        for index, value, successor in self._steps(x, key):
            x = value
            layers[index] = layers[index] if successor is None else successor
        changed = any(new is not old for new, old in zip(layers, self.layers, strict=True))
        return x, self.replace(layers=tuple(layers)) if changed else self
