"""What the transforms of this layer share: their modes, and how options of NNX become options of the rules."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
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
from weft.nnx.errors import OptionError, StructureError
from weft.nnx.graphs.nodes import is_graph_node
from weft.nnx.missing import Missing
from weft.nnx.variable.sharding import get_logical_axis_rules
from weft.nnx.variable.variable import Variable
from weft.transforms._wrap import as_tuple, by_position
from weft.transforms.differentiation import numbers_of_arguments
from weft.transforms.transformed import named_like

O = TypeVar("O")


def boundary_of(
    name: str, graph: bool | None, graph_updates: bool | None, *, copies: bool = False, supplies: int = 0
) -> References:
    """The references boundary of a transform, in the mode that is asked for or set (see `Mode`): one for each."""
    # Functions inside of the transform go by the switches too, and the logical axes are part of what they make.
    switches = (*setting(), repr(get_logical_axis_rules()))
    return _boundary_of(name, graph_mode(graph), graph_updates_mode(graph_updates), copies, supplies, switches)


@cached_by("mode and switches", most=256)
def _boundary_of(
    name: str, graph: bool, updates: bool, copies: bool, supplies: int, switches: tuple[Hashable, ...]
) -> References:
    return References(graph, updates, name, copies, supplies)


def decorate(function: Any, wrap: Callable[[Callable[..., Any]], Any]) -> Any:
    """`wrap(function)`, or the decorator `wrap` if no function was given."""
    if isinstance(function, Missing) or function is Missing:
        return wrap
    if not callable(function):
        raise TypeError(f"expected a function, got {type(function).__name__}: {function!r}")
    return wrap(function)


def over(
    rule: Rule[O], boundary: References, options: O, *, by_signature: bool = False, reaches: int = 0
) -> Callable[[Callable[..., Any]], Any]:
    """The decorator that a rule and its options make over graphs.

    Args:
        rule: of the transform.
        boundary: in the mode that is asked for.
        options: the rule's.
        by_signature: whether arguments that are passed by name go to their positions, and ride as those do.
        reaches: to which position `by_signature` fills in defaults, since the options speak of those arguments.
    """

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        refuse_bound_method(function, boundary.function)
        interpreted: Interpreted[O] = interpret(rule, boundary)((function,), options)

        def transformed(*args: Any, **kwargs: Any) -> Any:
            if by_signature and (kwargs or len(args) < reaches):
                args, kwargs = by_position(function, args, kwargs, reaches)
            return interpreted(args, kwargs)

        return named_like(function, transformed)

    return wrap


def refuse_bound_method(function: Any, name: str) -> None:
    """Refuses a method bound to an object: the object would be closed over, and could not be updated.

    Raises:
        ValueError: saying how to write it.
    """
    owner = getattr(function, "__self__", None)
    if owner is not None and hasattr(cast("type[Any]", type(owner)), "_pytree__is_pytree"):
        method = getattr(function, "__name__", "method")
        raise StructureError(
            f"nnx.{name} does not support bound methods: it was given {type(owner).__name__}.{method} of an object",
            fix=f"use nnx.{name}({type(owner).__name__}.{method})(obj, ...), or decorate the method in its class",
        )


def refuse_option(transform: str, option: str, value: int | Sequence[Any], fix: str) -> None:
    """Refuses an option that would else be left out in silence, if it is given.

    Raises:
        NotImplementedError: naming it, and what to do.
    """
    if as_tuple(value):
        raise OptionError(f"nnx.{transform} does not carry out {option}", at=f"{option}={value!r}", fix=fix)


def checked_prefix(boundary: References, value: Any, what: str, kinds: str) -> Any:
    """A prefix as the boundary reads it.

    Refuses prefix filters where there are no graph updates, as NNX does, and prefixes for graph mode elsewhere.

    Raises:
        ValueError: naming the option.
    """
    if kinds != "DiffState":  # which says nothing by kind
        refuse_by_kind(value, what, f"nnx.{kinds}", least=2)
    if (boundary.updates or not boundary.graph) and _any(value, _is(TreeState)):
        raise StructureError(
            f"`{what}` holds a prefix that was made for graph mode without graph updates",
            fix=f"pass graph=True and graph_updates=False to nnx.{boundary.function}, or make it with "
            "nnx.prefix(..., graph=False) for tree mode",
        )
    if _any(value, _is(Variable)):
        raise StructureError(
            f"Variables prefixes are not supported: `{what}` of nnx.{boundary.function} holds one",
            fix="give what it holds: variable[...]",
        )
    if boundary.graph and _any(value, is_graph_node):
        raise StructureError(
            f"Graph nodes are not allowed as prefixes: `{what}` of nnx.{boundary.function} holds an object",
            fix="make the prefix with nnx.prefix(obj, filters), or give one value for the whole object",
        )
    if not boundary.updates and not boundary.copies and any_filter(value):
        raise StructureError(
            f"`{what}` cannot contain `{kinds}` objects when `graph=False` or `graph_updates=False`",
            fix=f"pass graph=True and graph_updates=True to nnx.{boundary.function}, or give a prefix without them "
            f"(nnx.prefix makes one from filters); or use nnx.compat.{boundary.function}",
        )
    return read_prefix(value)


def any_filter(value: Any) -> bool:
    """Whether an option mentions a prefix filter."""
    return _any(value, _is(RidesByKind | DiffState))


def _is(kinds: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _any(value: Any, test: Callable[[Any], bool]) -> bool:
    if test(value):
        return True
    inner: Any = ()
    if isinstance(value, dict):
        inner = cast("dict[Any, Any]", value).values()
    elif isinstance(value, tuple | list):
        inner = cast("Sequence[Any]", value)
    return any(_any(part, test) for part in inner)


def argnums_and_filters(argnums: Any) -> tuple[int | tuple[int, ...], tuple[tuple[int, Any], ...]]:
    """NNX's `argnums`, numbers and `DiffState`s, as numbers, and the filters by number.

    Raises:
        StructureError: if an argument is named twice, for its Variables would be differentiated by one of the two.
        DifferentiationError: if one is named by something else.
    """
    single = not isinstance(argnums, Iterable)
    entries: tuple[Any, ...] = (argnums,) if single else tuple(cast("Iterable[Any]", argnums))
    numbers = numbers_of_arguments(
        [entry.argnum if isinstance(entry, DiffState) else entry for entry in entries],
        "an argument's Variables are chosen by nnx.DiffState(argnum, filter)",
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
