"""Calls the layers of combinators: passes keys to layers that take one, and finds successors in their results.

A layer is a record or a plain function. Only the result of its call shows whether the layer has state:

| a layer | returns | a combinator then |
|---|---|---|
| pure | `y` | passes `y` on |
| stateful | `(y, successor)`, or `(y, aux, successor)` for `((y, aux), successor)` | replaces the layer by it |

A layer's class and structure decide whether it has state, never its mode, so each call of one record returns the same
kind of result. `BatchNorm` is stateful in inference mode too. Attention is stateful while it has a cache, which is part
of its structure, and so is a block that contains the attention.

So a combinator of *one* layer (`Residual`, `Stack`, `Ensemble`, `Frozen`) is called like its layer: it returns `y`, or
`(y, successor)` with its own successor. The name of a combinator of *several* layers says what its call returns
(`Sequential` and `StatefulSequential`, `Parallel` and `StatefulParallel`), because neither a reader nor a type checker
looks through all of the layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, Generic, Protocol, Self, TypeVar, cast, overload

import equinox as eqx
import jax
from weft.core.edge import trees
from weft.core.errors import SuccessorError
from weft.core.records.keys import SeedError
from weft.core.records.module import Module
from weft.core.records.successors import arguments_by_name, check_origin, check_successor, take_successor
from weft.modules.construct import is_key
from weft.transforms.transformed import Transformed

Layer = Callable[..., Any]
Y = TypeVar("Y")
L_co = TypeVar("L_co", covariant=True)


class StatefulLayer(Protocol):
    """The type by which static checkers recognise a stateful layer."""

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Self]: ...


C = TypeVar("C", bound="Combinator[StatefulLayer]")


class Combinator(Module, Generic[L_co]):
    """Base of the combinators of one layer, which are called like that layer.

    A subclass may say in `_run` how its layer is called; by default, the layer in the field `layer` is called as it is.
    """

    @overload
    def __call__(self: C, x: Any, /, *args: Any, key: Any = None, **kwargs: Any) -> tuple[Any, C]: ...
    @overload
    def __call__(self: Combinator[Callable[..., Y]], x: Any, /, *args: Any, key: Any = None, **kwargs: Any) -> Y: ...
    def __call__(self, x: Any, /, *args: Any, key: Any = None, **kwargs: Any) -> Any:
        """Calls the layer.

        Args:
            x: what the layer takes.
            args: further arguments of the layer.
            key: a typed key, for a layer whose call has a `key` argument.
            kwargs: further arguments of the layer, by name.

        Returns:
            `y` if the layer is pure, `(y, successor of this combinator)` if it is stateful.

        Raises:
            SuccessorError: if the layer's successor is of another structure, or if the result does not show which part
                of it is the successor.
            SeedError: if the key is a `Keys` record, whose successor could not be handed back.
        """
        check_call_key(key, type(self).__qualname__)
        value, successor = self._run(x, args, kwargs, key)
        return value if successor is None else (value, successor)

    def _run(self, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> tuple[Any, Self | None]:
        """Calls the layer; returns its value, and this combinator's successor, or None if the layer is pure."""
        layer: Any = cast(Any, self).layer
        where, options = f"{type(self).__qualname__}.layer", key_option(layer, key)
        value, successor = call_layer(layer, where, x, *args, **kwargs, **options)
        if successor is None:
            return value, None
        # If the layer returned itself, so does this record, and nothing is copied.
        return value, self if successor is layer else self.replace(layer=successor)


def call_layer(layer: Layer, where: str, /, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Calls a layer, and separates its successor from its result.

    Args:
        layer: a record or a function.
        where: what to call its place in an error.
        args: its arguments.
        kwargs: its arguments by name.

    Returns:
        The result without the successor, and the successor; None for a pure layer.

    Raises:
        SuccessorError: if the successor is of another structure, has the parameters of a record among the arguments, or
            nobody could tell which it is.
    """
    result = layer(*args, **kwargs)
    record: Any = layer
    # A transformed record returns the successor of the record that it holds: `weft.remat(BatchNorm(8))`.
    while isinstance(record, Transformed) and hasattr(record, "function"):
        record = cast(Any, record).function
    value, successor = take_successor(record, result, where)
    if successor is None:
        return value, None
    # A layer whose call returns only its successor, such as a counter, leaves nothing for the next layer.
    if successor is result:
        raise SuccessorError(
            f"this {type(record).__qualname__} returns only its successor, so there is no output to pass on",
            at=where,
            fix="return (y, successor)",
        )
    check_successor(record, successor, where)
    # A layer may be given another model, such as a teacher, and must not return that model's successor as its own.
    check_origin(cast(Any, record), successor, arguments_by_name(args, kwargs), where)
    if record is layer:
        return value, successor
    if successor is record:
        return value, layer
    # The leaves of a transformed record are those of the record that it holds.
    return value, trees.structure(layer).unflatten(jax.tree.leaves(successor))


def takes_key(layer: Layer) -> bool:
    """Whether a layer's call has an argument `key`.

    >>> takes_key(lambda x, *, key: x), takes_key(jax.nn.relu)
    (True, False)
    """
    called = type(layer).__call__ if isinstance(layer, eqx.Module) else layer
    # Read off the code where there is some: `inspect.signature` is slow, and a cache would keep closures, and the
    # arrays in them, alive.
    plain = inspect.unwrap(called)
    if isinstance(plain, FunctionType):
        code = plain.__code__
        return "key" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    try:
        return "key" in inspect.signature(plain).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False


def key_option(layer: Layer, key: Any) -> dict[str, Any]:
    """Returns the keyword argument `key` for a layer's call; empty if there is no key or the layer takes none."""
    return {"key": key} if key is not None and takes_key(layer) else {}


def check_call_key(key: Any, owner: str) -> None:
    """Refuses a `Keys` record as the key of a call.

    Raises:
        SeedError: names the layer that draws.
    """
    # A `Keys` record returns a successor at each draw. A combinator has no place for it in its result, so the next call
    # with the same record would draw the same numbers.
    if isinstance(key, eqx.Module):
        raise SeedError(
            f"{owner} takes a typed key, not a {type(key).__name__}: it could not hand back the successor",
            fix='key, keys = keys.next("dropout"), then key=key',
        )


def keys_of_copies(key: Any, count: int, owner: str) -> Any:
    """Splits a key into one key for each copy of a layer.

    Raises:
        SeedError: if the key is not a typed key.
    """
    if not is_key(key):
        name = "nothing" if key is None else f"a {type(key).__name__}"
        raise SeedError(
            f"{owner} makes its layers from a typed key, not from {name}",
            fix=f"{owner}(..., key=jax.random.key(seed))",
        )
    return jax.random.split(key, count)
