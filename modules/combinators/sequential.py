"""Sequential: one layer after another.

Whether a chain has state shows in its class, so that readers and type checkers know what a call returns:

| class | layers | a call returns |
|---|---|---|
| `Sequential` | pure ones, and functions | `y` |
| `StatefulSequential` | any | `(y, successor)` |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

from jaxtyping import Array, Key, PyTree
from weft.modules.calling import Layer, Layers, PureOutput, as_layers, call_layer, check_call_key, split_among


class _Chain(Layers):
    def _steps(self, x: Any, key: Any) -> Iterator[tuple[int, Any, Any]]:
        check_call_key(key, type(self).__qualname__)
        for index, (layer, options) in enumerate(zip(self.layers, split_among(self.layers, key), strict=True)):
            # `call_layer` takes the successor off, so that the next layer gets the value alone, and not the pair.
            x, successor = call_layer(layer, f"layers[{index}]", x, **options)
            yield index, x, successor


# Both classes write their constructors out. Static checkers give a class that inherits its constructor the constructor
# of a dataclass, `Sequential(layers=...)`.
class Sequential(_Chain):
    """Pure layers and functions, one after another: `y = chain(x)`.

    Args:
        layers: records or plain functions, such as `jax.nn.relu`; one list or tuple of them does too.

    Raises:
        SuccessorError: if a layer's annotations say that it is stateful.

    >>> import jax, jax.numpy as jnp
    >>> from weft.modules import Dropout, Linear
    >>> first, second = jax.random.split(jax.random.key(0))
    >>> chain = Sequential(Linear(3, 8, key=first), jax.nn.relu, Dropout(0.1), Linear(8, 2, key=second))
    >>> chain(jnp.ones((5, 3)), key=jax.random.key(1)).shape
    (5, 2)
    """

    def __init__(self, *layers: Layer | Sequence[Layer]):
        self.layers = as_layers(layers)
        # At construction where annotations tell: the call may be in a compiled step, far from here.
        self._refuse_stateful("Sequential", "(y, successor)")

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
                # A layer without annotations shows its state only when it is called.
                raise self._stateful_inside(index, "Sequential", "(y, successor)")
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

    def __init__(self, *layers: Layer | Sequence[Layer]):
        self.layers = as_layers(layers)

    def __call__(self, x: PyTree, *, key: Key[Array, ""] | None = None) -> tuple[Any, Self]:
        """Calls each layer with what the one before returned, and keeps the successors.

        Args:
            x: what the first layer takes.
            key: a typed key, split among the layers whose call has a `key` argument.

        Raises:
            SuccessorError: if a layer's successor is of another structure.
        """
        successors: list[Any] = []
        for _, value, successor in self._steps(x, key):
            x = value
            successors.append(successor)
        return x, self._with_successors(successors)
