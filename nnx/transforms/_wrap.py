"""Shared by all NNX transforms: choose the boundary's mode, check prefixes, and convert NNX options to a rule's."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeVar, cast

from weft.core.caches import cached_by
from weft.core.interpreter.interpret import Interpreted, interpret
from weft.core.interpreter.prefixes import RidesByKind, refuse_by_kind
from weft.core.interpreter.rules import Rule
from weft.nnx.config import graph_mode, graph_updates_mode, setting
from weft.nnx.crossing.extract import TreeState
from weft.nnx.crossing.prefixes import read_prefix
from weft.nnx.crossing.references import References
from weft.nnx.crossing.rides import DiffState
from weft.nnx.errors import ArgumentKindError, Missing, StructureError
from weft.nnx.graphs.nodes import is_graph_node
from weft.nnx.variable.sharding import get_logical_axis_rules
from weft.nnx.variable.variable import Variable
from weft.transforms.arguments import by_position
from weft.transforms.differentiation import numbers_of_arguments
from weft.transforms.transformed import named_like

O = TypeVar("O")


def boundary_of(
    name: str, graph: bool | None, graph_updates: bool | None, *, copies: bool = False, supplies: int = 0
) -> References:
    """Returns the references boundary of a transform. Equal modes get the same object, because plans are kept by it."""
    # The user's function reads these switches while it is traced, so a trace under other switches must not be reused:
    # after `nnx.set_graph_mode(False)` a cached trace would go on as before.
    switches = (*setting(), repr(get_logical_axis_rules()))
    return _boundary_of(name, graph_mode(graph), graph_updates_mode(graph_updates), copies, supplies, switches)


# Kept, so that a transform which is made anew in each call of the function around it finds the plans of the call
# before.
@cached_by("mode and switches", most=256)
def _boundary_of(
    name: str, graph: bool, updates: bool, copies: bool, supplies: int, switches: tuple[Hashable, ...]
) -> References:
    return References(graph, updates, name, copies, supplies)


def decorate(function: Any, wrap: Callable[[Callable[..., Any]], Any]) -> Any:
    """Returns `wrap(function)`, or the decorator `wrap` if the user passed options only: `@nnx.jit(graph=False)`."""
    # flax's default is the class `Missing`, which a wrapper of its transforms may pass on; the default here is an
    # instance.
    if isinstance(function, Missing) or function is Missing:
        return wrap
    if not callable(function):
        raise ArgumentKindError(f"expected a function, got {type(function).__name__}: {function!r}")
    return wrap(function)


def over(
    rule: Rule[O], boundary: References, options: O, *, by_signature: bool = False, reaches: int = 0
) -> Callable[[Callable[..., Any]], Any]:
    """Makes the decorator that interprets a rule with its options over graphs.

    Args:
        rule: the transform's rule.
        boundary: the references boundary, in the user's mode.
        options: the options of the rule.
        by_signature: whether keyword arguments are moved to their positions, and ride as those do.
        reaches: up to which position `by_signature` fills in defaults, because the options name arguments before it.
    """

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        refuse_bound_method(function, boundary.function)
        interpreted: Interpreted[O] = interpret(rule, boundary)((function,), options)

        def transformed(*args: Any, **kwargs: Any) -> Any:
            # Binding to the signature takes time at each call, so a call with everything in its position is left as it
            # is.
            if by_signature and (kwargs or len(args) < reaches):
                args, kwargs = by_position(function, args, kwargs, reaches)
            return interpreted(args, kwargs)

        return named_like(function, transformed)

    return wrap


def refuse_bound_method(function: Any, name: str) -> None:
    """Refuses a bound method of an object: its object would be closed over, and could not be updated.

    Raises:
        ValueError: naming the unbound method to use.
    """
    # The class attribute tells all objects of NNX, and importing `Pytree` is not needed for it.
    owner = getattr(function, "__self__", None)
    if owner is not None and hasattr(cast("type[Any]", type(owner)), "_pytree__is_pytree"):
        method = getattr(function, "__name__", "method")
        raise StructureError(
            f"nnx.{name} does not support bound methods: got {type(owner).__name__}.{method} of an object",
            fix=f"use nnx.{name}({type(owner).__name__}.{method})(obj, ...), or decorate the method in its class",
        )


def checked_prefix(boundary: References, value: Any, option: str, kinds: str) -> Any:
    """Checks a prefix (`in_axes` and its kin), and converts what `nnx.prefix` has made.

    Refuses prefix filters without graph updates, as flax does, and graph-mode prefixes of `nnx.prefix` in other modes.

    Raises:
        ValueError: naming the option.
    """
    if kinds != "DiffState":  # a DiffState is an entry of argnums, not a prefix by kind
        refuse_by_kind(value, option, f"nnx.{kinds}", least=2)
    parts = list(_parts(value))
    if (boundary.updates or not boundary.graph) and any(isinstance(part, TreeState) for part in parts):
        raise StructureError(
            f"`{option}` has a prefix that was made for graph mode without graph updates",
            fix=f"pass graph=True and graph_updates=False to nnx.{boundary.function}, or make the prefix with "
            "nnx.prefix(..., graph=False) for tree mode",
        )
    if any(isinstance(part, Variable) for part in parts):
        raise StructureError(
            f"Variables prefixes are not supported: `{option}` of nnx.{boundary.function} has a Variable",
            fix="pass its value: variable[...]",
        )
    if boundary.graph and any(map(is_graph_node, parts)):
        raise StructureError(
            f"Graph nodes are not allowed as prefixes: `{option}` of nnx.{boundary.function} has an object",
            fix="make the prefix with nnx.prefix(obj, filters), or pass one value for the whole object",
        )
    has_filter = any(isinstance(part, RidesByKind | DiffState) for part in parts)
    if has_filter and not boundary.updates and not boundary.copies:
        raise StructureError(
            f"`{option}` cannot contain `{kinds}` objects when `graph=False` or `graph_updates=False`",
            fix=f"pass graph=True and graph_updates=True to nnx.{boundary.function}, or pass a prefix without them "
            f"(nnx.prefix makes one from filters); or use nnx.compat.{boundary.function}",
        )
    return read_prefix(value)


def _parts(prefix: Any) -> Iterator[Any]:
    """A prefix, and everything inside its dicts, tuples and lists."""
    yield prefix
    if isinstance(prefix, dict | tuple | list):
        for part in cast("dict[Any, Any]", prefix).values() if isinstance(prefix, dict) else cast("list[Any]", prefix):
            yield from _parts(part)


def argnums_and_filters(argnums: Any) -> tuple[int | tuple[int, ...], tuple[tuple[int, Any], ...]]:
    """Splits NNX's `argnums` (ints and `DiffState`s) into positions, and (position, filter) for each `DiffState`.

    Raises:
        StructureError: if two entries name one argument; only one of their filters could hold.
        DifferentiationError: if an entry is neither an int nor a `DiffState`.
    """
    # As in JAX, a bare int gives a bare gradient, and a sequence of one int a tuple of one gradient.
    single = not isinstance(argnums, Iterable)
    entries: tuple[Any, ...] = (argnums,) if single else tuple(cast("Iterable[Any]", argnums))
    numbers = numbers_of_arguments(
        [entry.argnum if isinstance(entry, DiffState) else entry for entry in entries],
        "to differentiate some Variables of an argument, write nnx.DiffState(argnum, filter)",
    )
    repeated = next((number for i, number in enumerate(numbers) if number in numbers[:i]), None)
    if repeated is not None:
        raise StructureError(
            f"argnum {repeated} is repeated in argnums",
            at=f"argnums={argnums!r}",
            fix="name each argument once; DiffState(argnum, nnx.Any(filter, ...)) differentiates by several filters",
        )
    filters = tuple((entry.argnum, entry.filter) for entry in entries if isinstance(entry, DiffState))
    return (numbers[0] if single else numbers), filters
