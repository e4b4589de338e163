"""Parallel: several layers with the same input.

| class | layers | a call returns |
|---|---|---|
| `Parallel` | pure ones, and functions | `ys`, merged |
| `StatefulParallel` | any | `(ys, successor)` |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar, overload

from jaxtyping import PyTree
from weft.modules.calling import Layer, Layers, as_layers, call_layer, check_call_key, split_among

M_co = TypeVar("M_co", covariant=True)
N = TypeVar("N")
Merge = Callable[[tuple[Any, ...]], N]


class _Branches(Layers, Generic[M_co]):
    merge: Callable[..., M_co] | None

    def _branches(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> Iterator[tuple[Any, Any]]:
        check_call_key(key, type(self).__qualname__)
        for index, (layer, options) in enumerate(zip(self.layers, split_among(self.layers, key), strict=True)):
            # A generator, so that `Parallel` stops at the first stateful layer.
            yield call_layer(layer, f"layers[{index}]", *args, **kwargs, **options)

    def _merged(self, outputs: tuple[Any, ...]) -> Any:
        return outputs if self.merge is None else self.merge(outputs)


class Parallel(_Branches[M_co]):
    """Calls pure layers and functions with the same input: `ys = parallel(x)`.

    Args:
        layers: records or plain functions.
        merge: a function of the tuple of their outputs: `sum`, `jnp.stack`, `lambda ys: jnp.concatenate(ys, -1)`; by
            default the tuple itself is returned.

    Raises:
        SuccessorError: if a layer's annotations say that it is stateful.

    >>> import jax, jax.numpy as jnp
    >>> from weft.modules import Linear
    >>> wide, narrow = (Linear(3, size, key=jax.random.key(size)) for size in (8, 2))
    >>> [y.shape for y in Parallel(wide, narrow)(jnp.ones((5, 3)))]
    [(5, 8), (5, 2)]
    >>> Parallel(wide, narrow, merge=lambda ys: jnp.concatenate(ys, -1))(jnp.ones((5, 3))).shape
    (5, 10)
    """

    @overload
    def __init__(self: Parallel[tuple[Any, ...]], *layers: Layer | Sequence[Layer], merge: None = None) -> None: ...
    @overload
    def __init__(self: Parallel[N], *layers: Layer | Sequence[Layer], merge: Merge[N]) -> None: ...
    def __init__(self, *layers: Layer | Sequence[Layer], merge: Any = None):
        self.layers, self.merge = as_layers(layers), merge
        self._refuse_stateful("Parallel", "(ys, successor)")

    def __call__(self, x: PyTree, /, *args: Any, key: Any = None, **kwargs: Any) -> M_co:
        """Calls each layer with the same arguments.

        Args:
            x: what the layers take.
            args: further arguments of theirs.
            key: a typed key, split among the layers whose call has a `key` argument.
            kwargs: what the layers take by name.

        Raises:
            SuccessorError: if a layer turns out to be stateful.
        """
        outputs: list[Any] = []
        for index, (value, successor) in enumerate(self._branches((x, *args), kwargs, key)):
            # A layer without annotations shows its state only now; without this error its successor would be lost.
            if successor is not None:
                raise self._stateful_inside(index, "Parallel", "(ys, successor)")
            outputs.append(value)
        return self._merged(tuple(outputs))


class StatefulParallel(_Branches[M_co]):
    """Calls pure or stateful layers with the same input: `ys, parallel = parallel(x)`.

    Args:
        layers: records, pure or stateful, or plain functions.
        merge: as in `Parallel`.

    >>> import jax, jax.numpy as jnp
    >>> from weft.modules import BatchNorm
    >>> parallel = StatefulParallel(BatchNorm(3), jax.nn.relu, merge=sum)
    >>> y, parallel = parallel(jnp.ones((5, 3)))
    >>> y.shape
    (5, 3)
    """

    @overload
    def __init__(
        self: StatefulParallel[tuple[Any, ...]], *layers: Layer | Sequence[Layer], merge: None = None
    ) -> None: ...
    @overload
    def __init__(self: StatefulParallel[N], *layers: Layer | Sequence[Layer], merge: Merge[N]) -> None: ...
    def __init__(self, *layers: Layer | Sequence[Layer], merge: Any = None):
        self.layers, self.merge = as_layers(layers), merge

    def __call__(self, x: PyTree, /, *args: Any, key: Any = None, **kwargs: Any) -> tuple[M_co, Self]:
        """Calls each layer with the same arguments, and keeps the successors.

        Args:
            x: what the layers take.
            args: further arguments of theirs.
            key: a typed key, split among the layers whose call has a `key` argument.
            kwargs: what the layers take by name.

        Raises:
            SuccessorError: if a layer's successor is of another structure.
        """
        # A list, because outputs and successors are both read from the one pass over the layers.
        branches = list(self._branches((x, *args), kwargs, key))
        outputs, successors = tuple(value for value, _ in branches), [successor for _, successor in branches]
        return self._merged(outputs), self._with_successors(successors)
