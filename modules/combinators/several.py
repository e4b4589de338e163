"""Sequential and Parallel: combinators of several layers, one after another or all of one input.

Whether a combinator has state shows in its class, so that readers and type checkers know what a call returns:

| class | layers | a call returns |
|---|---|---|
| `Sequential` | pure ones, and functions | `y` |
| `StatefulSequential` | any | `(y, successor)` |
| `Parallel` | pure ones, and functions | `ys`, merged |
| `StatefulParallel` | any | `(ys, successor)` |
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast, get_args, get_origin, overload

import equinox as eqx
import jax
import typing_extensions
from jaxtyping import Array, Key, PyTree
from weft.core.errors import SuccessorError
from weft.core.records.module import Module
from weft.modules.calling import Combinator, Layer, call_layer, check_call_key, takes_key

M_co = TypeVar("M_co", covariant=True)
N = TypeVar("N")
Merge = Callable[[tuple[Any, ...]], N]

# A chain of pure layers may return anything. Type checkers are told that it returns an array: with `Any`, which could
# be a pair, they would take `Residual(Sequential(...))` for stateful.
if TYPE_CHECKING:
    PureOutput = Array
else:
    PureOutput = Any


class Layers(Module):
    """Base of the combinators of several layers; it behaves as a sequence of the layers."""

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
        """Returns one layer; for a slice, the same combinator with some of the layers."""
        return self.replace(layers=self.layers[index]) if isinstance(index, slice) else self.layers[index]

    def _with_successors(self, successors: Sequence[Any]) -> Self:
        """Returns this combinator with the layers replaced by their successors; None leaves a layer as it is."""
        layers = tuple(old if new is None else new for old, new in zip(self.layers, successors, strict=True))
        # An unchanged combinator comes back as the same object, so that callers can tell by identity that nothing
        # changed.
        changed = any(new is not old for new, old in zip(layers, self.layers, strict=True))
        return self.replace(layers=layers) if changed else self

    def _refuse_stateful(self, name: str, returns: str) -> None:
        """Refuses layers whose annotations say that they are stateful; others show their state at the first call.

        Raises:
            SuccessorError: naming the first of them.
        """
        for index, layer in enumerate(self.layers):
            if says_stateful(layer):
                raise stateful_inside(layer, f"layers[{index}]", name, returns)

    def _calls(self, key: Any) -> Iterator[tuple[Layer, str, dict[str, Any]]]:
        """Yields each layer with its place, for errors, and with its own part of the key, if it takes one.

        Raises:
            SeedError: if the key is a `Keys` record, whose successor could not be handed back.
        """
        check_call_key(key, type(self).__qualname__)
        for index, (layer, options) in enumerate(zip(self.layers, split_among(self.layers, key), strict=True)):
            yield layer, f"layers[{index}]", options


# Both classes write their constructors out. Static checkers give a class that inherits its constructor the constructor
# of a dataclass, `Sequential(layers=...)`.
class Sequential(Layers):
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
        for layer, where, options in self._calls(key):
            # `call_layer` takes the successor off, so that the next layer gets the value alone, and not the pair.
            x, successor = call_layer(layer, where, x, **options)
            if successor is not None:
                # A layer without annotations shows its state only when it is called.
                raise stateful_inside(layer, where, "Sequential", "(y, successor)")
        return x


class StatefulSequential(Layers):
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
        for layer, where, options in self._calls(key):
            x, successor = call_layer(layer, where, x, **options)
            successors.append(successor)
        return x, self._with_successors(successors)


class _Branches(Layers, Generic[M_co]):
    merge: Callable[..., M_co] | None

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
        for layer, where, options in self._calls(key):
            value, successor = call_layer(layer, where, x, *args, **kwargs, **options)
            # A layer without annotations shows its state only now; without this error its successor would be lost.
            if successor is not None:
                raise stateful_inside(layer, where, "Parallel", "(ys, successor)")
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
        branches = [call_layer(layer, where, x, *args, **kwargs, **own) for layer, where, own in self._calls(key)]
        outputs, successors = tuple(value for value, _ in branches), [successor for _, successor in branches]
        return self._merged(outputs), self._with_successors(successors)


def stateful_inside(layer: Layer, where: str, name: str, returns: str) -> SuccessorError:
    """Makes the error for a stateful layer in a combinator of pure layers, which would lose the successor."""
    return SuccessorError(
        f"a {type(layer).__qualname__} is stateful, and {name} would lose its successor",
        at=where,
        fix=f"use Stateful{name}, whose call returns {returns}",
    )


def says_stateful(layer: Any) -> bool:
    """Whether the annotations of a layer's call say that it returns its successor: `-> tuple[..., Self]`.

    For a combinator of one layer, the annotations of that layer count. A layer without annotations counts as pure here.
    """
    if isinstance(layer, Combinator):
        parts = (getattr(layer, field.name, None) for field in dataclasses.fields(layer))
        return any(says_stateful(part) for part in parts if isinstance(part, eqx.Module))
    if not isinstance(layer, eqx.Module) or not callable(layer):
        return False
    cls = type(layer)
    returns = getattr(inspect.unwrap(cls.__call__), "__annotations__", {}).get("return")
    # Under `from __future__ import annotations` the annotation is text, whose names may not be imported at run time.
    if isinstance(returns, str):
        return re.fullmatch(rf"(?i:tuple)\[.*\b(Self|{cls.__name__})\]", returns.strip()) is not None
    members = get_args(returns) if get_origin(returns) is tuple else ()
    return len(members) > 1 and members[-1] in (Self, typing_extensions.Self, cls, cls.__name__)


def as_layers(layers: tuple[Layer | Sequence[Layer], ...]) -> tuple[Layer, ...]:
    """Returns the layers of a combinator, which were passed as arguments or as one list or tuple, as in equinox.

    >>> len(as_layers(([jax.nn.relu, jax.nn.tanh],))), len(as_layers((jax.nn.relu,)))
    (2, 1)
    """
    container: Any = layers[0] if len(layers) == 1 else None
    # A NamedTuple with a `__call__` is a layer, and not a list of layers.
    return tuple(container) if isinstance(container, list | tuple) and not callable(container) else cast(Any, layers)


def split_among(layers: Sequence[Layer], key: Any) -> list[dict[str, Any]]:
    """Returns for each layer the keyword argument `key`: each layer that takes one gets its own part of the key."""
    takers = [takes_key(layer) for layer in layers]
    # Without a layer that draws, the key is not split: the split would be traced into the program for nothing.
    if key is None or not any(takers):
        return [{} for _ in layers]
    keys = iter(jax.random.split(key, sum(takers)))
    return [{"key": next(keys)} if takes else {} for takes in takers]
