"""The bookkeeping of objects, and how they are taken apart and made anew as nodes of a graph.

Everything here works on what `pytree.Pytree` instances carry in their slots; it knows nothing of their classes.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weft.nnx.objects.attributes import HashableMapping
from weft.nnx.objects.layout import layout_of
from weft.nnx.variable.tracers import TraceState, current_trace_state
from weft.nnx.versions import fresh_version, structure_epoch

Items = list[tuple[Any, Any]]
_store = object.__setattr__
_new = object.__new__


@dataclasses.dataclass(frozen=True, slots=True)
class DataElem:
    """A child that is data, whatever its type; for `flatten` functions of registered types."""

    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class StaticElem:
    """A child that is static; likewise."""

    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class GraphNodeImpl:
    """How to handle objects of a type. Objects are made empty and filled later, so that cycles can close."""

    flatten: Callable[[Any], tuple[Items, Any]]
    set_key: Callable[[Any, Any, Any], None]
    pop_key: Callable[[Any, Any], Any]
    create_empty: Callable[[Any], Any]
    clear: Callable[[Any], None]
    init: Callable[[Any, Iterable[tuple[Any, Any]]], None]


@dataclasses.dataclass(frozen=True, slots=True)
class PytreeNodeImpl:
    """How to handle containers of a type. Those that cannot change in place have no `set_key`."""

    flatten: Callable[[Any], tuple[Items, Any]]
    unflatten: Callable[[Items, Any], Any]
    set_key: Callable[[Any, Any, Any], None] | None = None
    pop_key: Callable[[Any, Any], Any] | None = None


NodeImpl = GraphNodeImpl | PytreeNodeImpl


class Slots:
    """Where an object's bookkeeping is; `__dict__` here is the real one, past `Pytree`'s."""

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


# The attributes of an object as its real dict, for this package only: whoever writes to it bumps the version.
attributes_of = Slots.__dict__["__dict__"].__get__
_set_dict = Slots.__dict__["__dict__"].__set__

# Straight into the slots, where objects are made by the thousand: half the time of `object.__setattr__`.
_set_nodes, _set_trace, _set_exposed, _set_plans, _set_sorted, _set_version = (
    Slots.__dict__[f"_pytree__{name}"].__set__ for name in ("nodes", "trace", "exposed", "plans", "sorted", "version")
)


def touch(node: Any) -> None:
    """Gives an object a fresh structural version; to be called after the mutation."""
    version = fresh_version()
    _store(node, "_pytree__version", version)
    # In this order: a thread that looks in between would take the new epoch for one that it has looked at.
    structure_epoch.now = version


def in_order(node: Any) -> dict[str, Any]:
    """An object's attributes in the order in which they are to be seen.

    A call with graph updates describes an object anew, which sorts the attributes that it has then by name. They are
    only counted at that time, and sorted when somebody looks.
    """
    values = attributes_of(node).copy()
    count = node._pytree__sorted
    if not count:
        return values
    names = list(values)
    return {name: values[name] for name in (*sorted(names[:count]), *names[count:])}


def new_object(cls: Any, nodes: HashableMapping | None = None, trace: TraceState | None = None) -> Any:
    """An object without attributes, of a level (by default the current one); `__init__` is not run."""
    return keep_books(_new(cls), nodes, trace)


def keep_books(node: Any, nodes: HashableMapping | None = None, trace: TraceState | None = None) -> Any:
    """Gives an object that was just made its bookkeeping, and returns it."""
    _set_nodes(node, type(node)._pytree__class_nodes if nodes is None else nodes)
    _set_trace(node, current_trace_state() if trace is None else trace)
    _set_exposed(node, False)
    _set_plans(node, None)
    _set_sorted(node, 0)
    _set_version(node, fresh_version())
    return node


def new_objects(kinds: Sequence[type], nodes: Sequence[HashableMapping]) -> list[Any]:
    """Many objects as of `new_object`, in steps of C, with their records of which attributes are data."""
    objects = list(map(_new, kinds))
    repeat = itertools.repeat
    for write, values in (
        (_set_nodes, nodes),
        (_set_trace, repeat(current_trace_state())),
        (_set_exposed, repeat(False)),
        (_set_plans, repeat(None)),
        (_set_sorted, repeat(0)),
        # Never None: it is called until the objects are at an end.
        (_set_version, iter(fresh_version, None)),
    ):
        any(map(write, objects, values))  # to write gives None, so that it runs through
    return objects


def set_attributes(objects: Iterable[Any], attributes: Iterable[dict[str, Any]]) -> None:
    """Gives new objects all their attributes."""
    any(map(_set_dict, objects, attributes))


def picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What picks the values at some places of a sequence, in one step of C where there are several."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda values: tuple(values[place] for place in places)


def object_items(node: Any) -> list[tuple[Any, Any, bool | None]]:
    """The attributes of a `Pytree` as (key, value, is data); `None` where its class keeps no record of that."""
    values = attributes_of(node).copy()  # in one step, whatever other threads do to the object meanwhile
    layout = layout_of(node._pytree__nodes, values, node._pytree__has_int_keys)
    if node._pytree__is_pytree:
        return [(key, values[name], is_data) for name, key, is_data in layout.items]
    return [(key, values[name], None) for name, key, _ in layout.items]


_ELEMENT = {True: DataElem, False: StaticElem, None: lambda value: value}


def _flatten_object(node: Any) -> tuple[Items, Any]:
    items = [(key, _ELEMENT[is_data](value)) for key, value, is_data in object_items(node)]
    return items, (type(node), node._pytree__nodes)


def _empty_object(metadata: Any) -> Any:
    kind, nodes = metadata
    return new_object(kind, nodes)


def _clear_object(node: Any) -> None:
    attributes_of(node).clear()
    touch(node)


def fill_object(node: Any, items: Iterable[tuple[Any, Any]], nodes: HashableMapping | None = None) -> None:
    """Gives an object attributes as they are, and the record of which are data where there is a new one."""
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
    create_empty=_empty_object,
    clear=_clear_object,
    init=fill_object,
)
