"""Proxies: the parts of a threaded record, as the handle of an open `thread` block gives them.

A proxy is a path from the handle; the docstring of `thread` lists its uses. A part that can be called is also a
threaded function (`functions`), which weft's transforms take as a function.
"""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, cast

import equinox as eqx
from weft.core.edge.trees import PyTree
from weft.core.errors import SuccessorError
from weft.core.paths import Path
from weft.core.records.module import converted, undeclared
from weft.core.records.successors import next_value
from weft.core.threads.blocks import Block
from weft.core.threads.functions import Proxy, ThreadedFunction, block_of, path_of, value_of


class RecordProxy(Proxy):
    """Stands for a record inside an open `thread` block."""

    __slots__ = ()

    def __getattr__(self, name: str) -> PyTree:
        block, path = block_of(self), path_of(self)
        record: eqx.Module = block.get(path)
        value = getattr(record, name)
        if name in field_names(record):
            return _wrap(block, (*path, name), value)
        # A callable attribute that is no field is a method, whose successor is a successor of this record.
        return ThreadedFunction(block, path, name) if callable(value) else value

    def __setattr__(self, name: str, value: PyTree) -> None:
        block, path = block_of(self), path_of(self)
        record: eqx.Module = block.get(path)
        names = field_names(record)
        if name not in names:
            raise undeclared(cast("type[Any]", type(record)), name)
        value = next_value(getattr(record, name), value_of(value))
        block.put((*path, name), converted(cast("type[Any]", type(record)), name, value))

    def __delattr__(self, name: str) -> None:
        handle = block_of(self).format_handle(path_of(self))
        raise AttributeError(f"a threaded record keeps its fields: set {handle}.{name} = None, if its type allows it")

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        __tracebackhide__ = True
        return ThreadedFunction(block_of(self), path_of(self), "__call__")(*args, **kwargs)

    def __len__(self) -> int:
        return len(cast("Sequence[Any]", value_of(self)))

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        """The item that the record's own `__getitem__` returns, as a proxy: `t.chain[0]` is `t.chain.layers[0]`."""
        block, path = block_of(self), path_of(self)
        record: Any = block.get(path)
        value = record[key]
        if not _holds_records(value):
            return value
        for name in field_names(record):
            place = _place_of(value, getattr(record, name))
            if place is not None:
                return _wrap(block, (*path, name, *place), value)
        handle = block.format_handle(path)
        raise SuccessorError(
            f"{handle}[{key!r}] is no part of the {type(record).__qualname__}, whose __getitem__ has just made it: "
            "its successor would have no place",
            at=block.format(path),
            fix=f"call {handle}, whose successor has a place; or take the item by hand: peek({handle})[{key!r}]",
        )


class ContainerProxy(Proxy):
    """Stands for a container that holds records, inside an open `thread` block."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(value_of(self))

    def __setattr__(self, name: str, value: PyTree) -> None:
        handle = block_of(self).format_handle(path_of(self))
        raise AttributeError(
            f"a {type(value_of(self)).__name__} has no fields to set: {handle}[...] = value sets an item"
        )


class SequenceProxy(ContainerProxy):
    """Stands for a list or tuple that holds records, inside an open `thread` block."""

    __slots__ = ()

    def __getitem__(self, index: int | slice) -> PyTree:
        block, path = block_of(self), path_of(self)
        row: Sequence[PyTree] = block.get(path)
        if isinstance(index, slice):
            return [self[place] for place in range(len(row))[index]]
        place = range(len(row))[index]
        return _wrap(block, (*path, place), row[place])

    def __setitem__(self, index: int, value: PyTree) -> None:
        block_of(self).put((*path_of(self), range(len(self))[index]), value_of(value))

    def __getattr__(self, name: str) -> PyTree:
        row = value_of(self)
        names: tuple[str, ...] = getattr(row, "_fields", ())
        if name in names:
            return self[names.index(name)]
        raise AttributeError(
            f"{type(row).__name__} has no attribute {name!r} inside a thread block: it is read, iterated and assigned "
            "to by index, and keeps its length"
        )

    def __iter__(self) -> Iterator[PyTree]:
        return iter(self[:])


class MappingProxy(ContainerProxy):
    """Stands for a dict that holds records, inside an open `thread` block."""

    __slots__ = ()

    def __getitem__(self, key: Hashable) -> PyTree:
        path = (*path_of(self), key)
        return _wrap(block_of(self), path, block_of(self).get(path))

    def __setitem__(self, key: Hashable, value: PyTree) -> None:
        block_of(self).put((*path_of(self), key), value_of(value))

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self.keys())

    def __contains__(self, key: object) -> bool:
        return key in value_of(self)

    def keys(self) -> list[Hashable]:
        """The keys of the dict."""
        return list(value_of(self))

    def values(self) -> list[PyTree]:
        """A proxy or a value for each key."""
        return [self[key] for key in self]

    def items(self) -> list[tuple[Hashable, PyTree]]:
        """The keys, each with its proxy or value."""
        return [(key, self[key]) for key in self]


def field_names(record: eqx.Module) -> tuple[str, ...]:
    """The names of a record's fields."""
    return tuple(record.__dataclass_fields__)


def _wrap(block: Block, path: Path, value: PyTree) -> PyTree:
    if isinstance(value, eqx.Module):
        return RecordProxy(block, path)
    if not _holds_records(value):
        return value
    return (MappingProxy if isinstance(value, dict) else SequenceProxy)(block, path)


def _holds_records(value: PyTree) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_records, cast("Sequence[Any]", value)))
    if isinstance(value, dict):
        return any(map(_holds_records, cast("dict[Any, Any]", value).values()))
    return isinstance(value, eqx.Module)


def _place_of(value: Any, container: Any) -> Path | None:
    """The path of a value, found by identity, in the containers of a field; None if it is not there."""
    if value is container:
        return ()
    items: Any = ()
    if isinstance(container, (list, tuple)):
        items = enumerate(cast("Sequence[Any]", container))
    elif isinstance(container, dict):
        items = cast("dict[Any, Any]", container).items()
    for key, item in items:
        place = _place_of(value, item)
        if place is not None:
            return (key, *place)
    return None


def threaded_function(function: object) -> ThreadedFunction | None:
    """A part of a threaded record as a function for a transform; None for every other function.

    Raises:
        SuccessorError: for a container of records, which cannot be called.
    """
    if isinstance(function, ThreadedFunction):
        return function
    if isinstance(function, types.MethodType) and function.__func__ is RecordProxy.__call__:
        function = function.__self__
    if isinstance(function, RecordProxy):
        return ThreadedFunction(block_of(function), path_of(function), "__call__")
    if isinstance(function, ContainerProxy):
        block, path = block_of(function), path_of(function)
        row = type(value_of(function)).__name__
        raise SuccessorError(
            f"a {row} of records cannot be called, so no transform takes it as a function",
            at=block.format(path),
            fix=f"call its items in a Python loop, `for part in {block.format_handle(path)}`, or stack records of "
            "equal structure into one (weft.tree.stack), over which weft.scan loops",
        )
    return None


def refuse_threaded(functions: Sequence[object], transform: str, why: str) -> None:
    """Refuses threaded functions in a transform that cannot return their successors, and says why.

    Raises:
        SuccessorError: naming the part, and how to pass its record by hand.
    """
    for function in functions:
        threaded = threaded_function(function)
        if threaded is not None:
            handle = threaded.block.format_handle(threaded.path)
            raise SuccessorError(
                f"{transform} cannot take a part of a threaded record as a function, because it could not return the "
                f"part's successor: {why}",
                at=threaded.describe(),
                fix=f"pass the record as an argument, {transform}(lambda part, ...: ...)(peek({handle}), ...), and "
                f"assign the successor that it returns: {handle} = ...",
            )
