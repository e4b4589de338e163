"""How combinators call their layers: which get a key, and what of a result is the successor.

A layer is a record or a plain function. Whether it has state shows in what its call returns, and only there:

| a layer | returns | a combinator then |
|---|---|---|
| pure | `y` | passes `y` on |
| stateful | `(y, successor)`, or `(y, aux, successor)` for `((y, aux), successor)` | puts it in its place |

Whether a layer has state is a matter of its class and structure, never of its mode: of one record each call returns
the same. `BatchNorm` is stateful in inference mode too; attention is stateful from where it is given a cache, which
changes its structure, until that is taken away, and so is a block that holds it.

So a combinator of *one* layer (`Residual`, `Stack`, `Ensemble`, `Frozen`) is called like its layer: it returns `y`, or
`(y, successor)` with its own successor. One of *several* layers says in its name which it does (`Sequential` and
`StatefulSequential`, `Parallel` and `StatefulParallel`), as neither a reader nor a type checker would like to look
through all of them.
"""

from __future__ import annotations

import abc
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, cast, get_args, get_origin, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import typing_extensions
from jaxtyping import Array
from weft.core.errors import SuccessorError
from weft.core.records.keys import SeedError
from weft.core.records.module import Module
from weft.core.records.origins import arguments_by_name, check_origin
from weft.core.records.successors import check_successor, take_successor

Layer = Callable[..., Any]
Y = TypeVar("Y")
L_co = TypeVar("L_co", covariant=True)

# What a chain of pure layers returns may be anything. Checkers are told that it is an array: `Any` could be a pair, and
# `Residual(Sequential(...))` would be taken for stateful.
if TYPE_CHECKING:
    PureOutput = Array
else:
    PureOutput = Any


class StatefulLayer(Protocol):
    """What checkers know a stateful layer by."""

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Self]: ...


C = TypeVar("C", bound="Combinator[StatefulLayer]")


class Combinator(Module, Generic[L_co]):
    """Base of the combinators of one layer, which are called like that layer.

    A subclass says in `_run` how the layer is called.
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
            SuccessorError: if the layer's successor is of another structure, or nobody could tell which it is.
            SeedError: if the key is a `Keys` record, whose successor could not be handed back.
        """
        check_call_key(key, type(self).__qualname__)
        value, successor = self._run(x, args, kwargs, key)
        return value if successor is None else (value, successor)

    @abc.abstractmethod
    def _run(self, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> tuple[Any, Self | None]:
        """Calls the layer: what it returned, and this combinator's successor if the layer is stateful."""


class Layers(Module):
    """Base of the combinators of several layers, which are a sequence of them."""

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
        """One layer, or the same combinator of some of them."""
        return self.replace(layers=self.layers[index]) if isinstance(index, slice) else self.layers[index]

    def _with_successors(self, successors: Sequence[Any]) -> Self:
        """This combinator with the layers' successors in their places, None standing for no change."""
        layers = tuple(old if new is None else new for old, new in zip(self.layers, successors, strict=True))
        changed = any(new is not old for new, old in zip(layers, self.layers, strict=True))
        return self.replace(layers=layers) if changed else self

    def _refuse_stateful(self, name: str, returns: str) -> None:
        """Refuses the layers that say by themselves that they are stateful; of others the first call tells.

        Raises:
            SuccessorError: naming the first of them.
        """
        for index, layer in enumerate(self.layers):
            if says_stateful(layer):
                raise self._stateful_inside(index, name, returns)

    def _stateful_inside(self, index: int, name: str, returns: str) -> SuccessorError:
        """The error for a stateful layer in a combinator of pure ones: its successor would be lost."""
        return SuccessorError(
            f"a {type(self.layers[index]).__qualname__} is stateful, and {name} would lose its successor",
            at=f"layers[{index}]",
            fix=f"use Stateful{name}, whose call returns {returns}",
        )


def says_stateful(layer: Any) -> bool:
    """Whether the annotations of a layer's call say that it returns its successor: `-> tuple[..., Self]`.

    A combinator of one layer is asked for that layer. What says nothing shows its state when it is called.
    """
    if isinstance(layer, Combinator):
        parts = (getattr(layer, field.name, None) for field in dataclasses.fields(layer))
        return any(says_stateful(part) for part in parts if isinstance(part, eqx.Module))
    if not isinstance(layer, eqx.Module):
        return False
    cls = type(layer)
    call = cls.__call__ if callable(layer) else says_stateful
    returns = getattr(inspect.unwrap(call), "__annotations__", {}).get("return")
    if isinstance(returns, str):
        return re.fullmatch(rf"(?i:tuple)\[.*\b(Self|{cls.__name__})\]", returns.strip()) is not None
    members = get_args(returns) if get_origin(returns) is tuple else ()
    return len(members) > 1 and members[-1] in (Self, typing_extensions.Self, cls, cls.__name__)


def as_layers(layers: tuple[Layer | Sequence[Layer], ...]) -> tuple[Layer, ...]:
    """The layers that a combinator was given, one after another, or as one list or tuple of them, as in equinox.

    >>> len(as_layers(([jax.nn.relu, jax.nn.tanh],))), len(as_layers((jax.nn.relu,)))
    (2, 1)
    """
    container: Any = layers[0] if len(layers) == 1 else None
    return tuple(container) if isinstance(container, list | tuple) and not callable(container) else cast(Any, layers)


def call_layer(layer: Layer, where: str, /, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Calls a layer and takes its successor out of the result.

    Args:
        layer: a record or a function.
        where: what to call its place in an error.
        args: its arguments.
        kwargs: its arguments by name.

    Returns:
        What it returned beside its successor, and the successor: None for a pure layer.

    Raises:
        SuccessorError: if the successor is of another structure, has the parameters of a record among the arguments, or
            nobody could tell which it is.
    """
    result = layer(*args, **kwargs)
    value, successor = take_successor(layer, result, where)
    if successor is None:
        return value, None
    if successor is result:
        raise SuccessorError(
            f"this {type(layer).__qualname__} returns its successor alone, and nothing that a combinator could pass on",
            at=where,
            fix="return (y, successor)",
        )
    check_successor(layer, successor, where)
    check_origin(cast(Any, layer), successor, arguments_by_name(args, kwargs), where)
    return value, successor


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
    except (TypeError, ValueError):  # built-in functions may have no signature
        return False


def key_option(layer: Layer, key: Any) -> dict[str, Any]:
    """The key as an argument of a layer's call, if there is one and the layer takes it."""
    return {"key": key} if key is not None and takes_key(layer) else {}


def split_among(layers: Sequence[Layer], key: Any) -> list[dict[str, Any]]:
    """For each layer the key as an argument of its call: one of its own for each that takes one."""
    takers = [takes_key(layer) for layer in layers]
    if key is None or not any(takers):
        return [{} for _ in layers]
    keys = iter(jax.random.split(key, sum(takers)))
    return [{"key": next(keys)} if takes else {} for takes in takers]


def check_call_key(key: Any, owner: str) -> None:
    """Refuses a record of keys as the key of a call.

    Raises:
        SeedError: naming what draws.
    """
    if isinstance(key, eqx.Module):
        raise SeedError(
            f"{owner} takes a typed key, not a {type(key).__name__}: it could not hand back the successor",
            fix='key, keys = keys.next("dropout"), then key=key',
        )


def keys_of_copies(key: Any, count: int, owner: str) -> Any:
    """One key for each copy of a layer.

    Raises:
        SeedError: if the key is no typed key.
    """
    dtype = getattr(key, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        raise SeedError(
            f"{owner} makes its layers from a typed key, not from {_name(key)}",
            fix=f"{owner}(..., key=jax.random.key(seed))",
        )
    return jax.random.split(key, count)


def _name(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
