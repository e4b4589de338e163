"""The bookkeeping of objects in their slots, and the functions that flatten and rebuild objects as graph nodes.

This file reads and writes the slots of `modules.pytree.Pytree` instances, and does not import that class.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weft.nnx.objects.attributes import HashableMapping
from weft.nnx.objects.layout import Layout, layout_of
from weft.nnx.variable.tracers import TraceState, current_trace_state
from weft.nnx.versions import fresh_version, structure_epoch

Items = list[tuple[Any, Any]]
_store = object.__setattr__
_new = object.__new__


@dataclasses.dataclass(frozen=True, slots=True)
class DataElem:
    """Marks a child as data in the result of a registered `flatten` function, whatever its type."""

    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class StaticElem:
    """Marks a child as static in the result of a registered `flatten` function, whatever its type."""

    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class GraphNodeImpl:
    """The functions that flatten and rebuild objects of a type. They are created empty, then filled, for cycles."""

    flatten: Callable[[Any], tuple[Items, Any]]
    set_key: Callable[[Any, Any, Any], None]
    pop_key: Callable[[Any, Any], Any]
    create_empty: Callable[[Any], Any]
    clear: Callable[[Any], None]
    init: Callable[[Any, Iterable[tuple[Any, Any]]], None]


@dataclasses.dataclass(frozen=True, slots=True)
class PytreeNodeImpl:
    """The functions that flatten and rebuild containers of a type; immutable containers have no `set_key`."""

    flatten: Callable[[Any], tuple[Items, Any]]
    unflatten: Callable[[Items, Any], Any]
    set_key: Callable[[Any, Any, Any], None] | None = None
    pop_key: Callable[[Any, Any], Any] | None = None


NodeImpl = GraphNodeImpl | PytreeNodeImpl


class Slots:
    """The slots of an object. `__dict__` here is Python's own; `Pytree` shadows it with a property."""

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_pytree__exposed",
        "_pytree__nodes",
        "_pytree__plans",
        "_pytree__sorted",
        "_pytree__trace",
        "_pytree__version",
    )


# Returns an object's real attribute dict, without marking it as exposed. Code that writes to it must call `touch`.
attributes_of = Slots.__dict__["__dict__"].__get__
_set_dict = Slots.__dict__["__dict__"].__set__

# The slots' own setters take half the time of `object.__setattr__`; a training step makes thousands of objects.
_set_nodes, _set_trace, _set_exposed, _set_plans, _set_sorted, _set_version = (
    Slots.__dict__[f"_pytree__{name}"].__set__ for name in ("nodes", "trace", "exposed", "plans", "sorted", "version")
)


def touch(node: Any) -> None:
    """Gives an object a new structural version. Call it after the mutation, never before."""
    version = fresh_version()
    _store(node, "_pytree__version", version)
    # The epoch last: a thread that validates a plan in between would store the new epoch with the old version.
    structure_epoch.now = version


def in_order(node: Any) -> dict[str, Any]:
    """Returns an object's attributes in flax's order.

    In flax, a call with graph updates rewrites an object's attributes sorted by name. Here the call only stores how
    many attributes there were, in `_pytree__sorted`, and this function sorts that many when the order is read.
    """
    values = attributes_of(node).copy()
    count = node._pytree__sorted
    if not count:
        return values
    names = list(values)
    return {name: values[name] for name in (*sorted(names[:count]), *names[count:])}


def new_object(cls: Any, nodes: HashableMapping | None = None, trace: TraceState | None = None) -> Any:
    """Makes an object without attributes, at a trace level (by default the current one), without `__init__`."""
    return keep_books(_new(cls), nodes, trace)


def keep_books(node: Any, nodes: HashableMapping | None = None, trace: TraceState | None = None) -> Any:
    """Initialises the slots of a new object, and returns it."""
    _set_nodes(node, type(node)._pytree__class_nodes if nodes is None else nodes)
    _set_trace(node, current_trace_state() if trace is None else trace)
    _set_exposed(node, False)
    _set_plans(node, None)
    _set_sorted(node, 0)
    _set_version(node, fresh_version())
    return node


def new_objects(kinds: Sequence[type], nodes: Sequence[HashableMapping]) -> list[Any]:
    """Makes many objects like `new_object`, by a loop in C for each slot; `nodes` are their attribute records."""
    objects = list(map(_new, kinds))
    repeat = itertools.repeat
    for write, values in (
        (_set_nodes, nodes),
        (_set_trace, repeat(current_trace_state())),
        (_set_exposed, repeat(False)),
        (_set_plans, repeat(None)),
        (_set_sorted, repeat(0)),
        # `iter` with a sentinel that never occurs: `fresh_version` is called once for each object.
        (_set_version, iter(fresh_version, None)),
    ):
        any(map(write, objects, values))  # the setters return None, so `any` never stops early
    return objects


def set_attributes(objects: Iterable[Any], attributes: Iterable[dict[str, Any]]) -> None:
    """Sets the attribute dicts of new objects."""
    any(map(_set_dict, objects, attributes))


def picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Makes a function that selects the values at `places` of a sequence: `itemgetter`, but always with a tuple."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda values: tuple(values[place] for place in places)


def layout_and_values(node: Any) -> tuple[Layout, dict[str, Any]]:
    """An object's layout, and a copy of its attributes."""
    # The copy is made in one step: another thread may add attributes meanwhile.
    values = attributes_of(node).copy()
    return layout_of(node._pytree__nodes, values, node._pytree__has_int_keys), values


def object_items(node: Any) -> list[tuple[Any, Any, bool | None]]:
    """The attributes of a `Pytree` as (key, value, is data); the last is None for a class with `pytree=False`."""
    layout, values = layout_and_values(node)
    if node._pytree__is_pytree:
        return [(key, values[name], is_data) for name, key, is_data in layout.items]
    return [(key, values[name], None) for name, key, _ in layout.items]


_ELEMENT = {True: DataElem, False: StaticElem, None: lambda value: value}


def _flatten_object(node: Any) -> tuple[Items, Any]:
    items = [(key, _ELEMENT[is_data](value)) for key, value, is_data in object_items(node)]
    return items, (type(node), node._pytree__nodes)


def _clear_object(node: Any) -> None:
    attributes_of(node).clear()
    touch(node)


def fill_object(node: Any, items: Iterable[tuple[Any, Any]], nodes: HashableMapping | None = None) -> None:
    """Sets an object's attributes without checks, and its record of which are data, if one is passed."""
    # Past `__setattr__`: the attributes were checked when the user set them.
    values = attributes_of(node)
    for key, value in items:
        values[key if isinstance(key, str) else str(key)] = value
    if nodes is not None:
        _store(node, "_pytree__nodes", nodes)
    touch(node)


OBJECT = GraphNodeImpl(
    flatten=_flatten_object,
    set_key=lambda node, key, value: node._graph_node_set_key(key, value),
    pop_key=lambda node, key: node._graph_node_pop_key(key),
    create_empty=lambda metadata: new_object(*metadata),
    clear=_clear_object,
    init=fill_object,
)
