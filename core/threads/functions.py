"""Threaded functions: parts of a threaded record that can be called, and that transforms take as functions.

A transform of a threaded function is a threaded function again (`through`); the transforms are applied when it is
called. Then the boundary `core/interpreter/threaded.py` passes the current record into the transform as an argument,
never as a closure, and writes its changes back when the transform has returned.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import equinox as eqx
from weft.core.edge.trees import PyTree
from weft.core.paths import Path
from weft.core.records.leaves import is_array
from weft.core.records.origins import arguments_by_name, check_origin
from weft.core.records.successors import check_successor, is_usual_pair, take_successor
from weft.core.threads.blocks import Block, unguarded, without_record
from weft.core.threads.debugging import note_place


class Proxy:
    """A path from an open handle. It holds no value: each use reads the current one."""

    __slots__ = ("_weft_block", "_weft_path")

    # Unhashable, so that a proxy that is passed to a transform raises. As a hashable object it would be configuration
    # of the call, and the function would read a stale record from it.
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(self, block: Block, path: Path):
        object.__setattr__(self, "_weft_block", block)
        object.__setattr__(self, "_weft_path", path)

    def __repr__(self) -> str:
        return f"<threaded {block_of(self).format(path_of(self))}>"


def block_of(proxy: Proxy) -> Block:
    """The block that a proxy reads from."""
    return object.__getattribute__(proxy, "_weft_block")


def path_of(proxy: Proxy) -> Path:
    """The path of a proxy in the threaded record."""
    return object.__getattribute__(proxy, "_weft_path")


def value_of(value: PyTree) -> PyTree:
    """The current value of a proxy; any other value is returned unchanged."""
    return block_of(value).get(path_of(value)) if isinstance(value, Proxy) else value


@dataclass(frozen=True, eq=False)
class Transform:
    """A transform with its options, as it is applied to a part.

    Attributes:
        apply: transforms a function.
        key: the transform's name and options, by which transforms are compared. Each call of a composite opens a new
            block and makes new transforms, which must hit the cache of the earlier ones.
    """

    apply: Callable[[Callable[..., Any]], Callable[..., Any]]
    key: tuple[object, ...]

    def __eq__(self, other: object) -> bool:
        return type(other) is Transform and self.key == other.key

    def __hash__(self) -> int:
        return 0  # options need not be hashable


class ThreadedFunction:
    """A method of a threaded record, possibly transformed; a call puts the successor into the block.

    Attributes:
        block, path: the block, and the record's path in it.
        name: the name of the method.
        transforms: the transforms that are applied to it, the innermost first.
    """

    def __init__(self, block: Block, path: Path, name: str, transforms: tuple[Transform, ...] = ()):
        self.block, self.path, self.name, self.transforms = block, path, name, transforms

    # Two threaded functions are equal if their names are, though their blocks differ: a trace uses only the block's
    # name, and the record is an argument.
    def __eq__(self, other: object) -> bool:
        return type(other) is ThreadedFunction and (
            (self.block.name, self.path, self.name, self.transforms)
            == (other.block.name, other.path, other.name, other.transforms)
        )

    # Without the transforms, whose options need not be hashable.
    def __hash__(self) -> int:
        return hash((self.block.name, self.path, self.name, len(self.transforms)))

    def __repr__(self) -> str:
        return f"<threaded {self.describe()}>"

    @property
    def __name__(self) -> str:
        return self.describe()

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.bound(self.block.get(self.path)))

    @property
    def remembered_by(self) -> eqx.Module:
        """The record with which the plans for this part are remembered; see `memory`."""
        return self.block.get(self.path)

    def describe(self) -> str:
        """The function as errors call it: `Net.bn`, `Net.attention.decode`."""
        return self.block.format(self.path) + self.suffix("")

    def suffix(self, call: str = "(...)") -> str:
        """The text after the record's path in a call: `(...)`, `.decode(...)`."""
        return call if self.name == "__call__" else f".{self.name}{call}"

    def through(self, transform: Transform) -> ThreadedFunction:
        """This function under one more transform."""
        return ThreadedFunction(self.block, self.path, self.name, (*self.transforms, transform))

    def on(self, block: Block) -> ThreadedFunction:
        """This function on another block."""
        return ThreadedFunction(block, self.path, self.name, self.transforms)

    def named(self) -> ThreadedFunction:
        """This function on a block without a record, so that a cache that stores it keeps no arrays alive."""
        return self.on(without_record(self.block.name))

    def bound(self, record: eqx.Module) -> Callable[..., PyTree]:
        """The method of a record."""
        return cast("Callable[..., PyTree]", record) if self.name == "__call__" else getattr(record, self.name)

    def take(
        self, record: eqx.Module, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> tuple[PyTree, eqx.Module | None]:
        """Calls the method of a record, and splits its result into the value and the successor (None if there is
        none)."""
        result = self.bound(record)(*args, **kwargs)
        if is_usual_pair(record, result) and all(map(is_array, (*args, *kwargs.values()))):
            return result
        handle, suffix = self.block.format_handle(self.path), self.suffix()
        method = getattr(cast("type[Any]", type(record)), self.name, None)
        where = self.block.format(self.path) + suffix
        value, successor = take_successor(
            record, result, where, method=method, by_hand=(handle, f"peek({handle}){suffix}")
        )
        row = cast("tuple[Any, ...]", result) if type(result) is tuple else ()
        if successor is None and len(row) > 1 and isinstance(row[-1], eqx.Module):
            # A record in the successor's place that is no successor of this record (its structure differs) is refused:
            # as part of the value, the state in it would be lost.
            check_successor(record, row[-1], where)
        if successor is not None:
            check_origin(record, successor, arguments_by_name(args, kwargs), where)
        return value, successor

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        __tracebackhide__ = True
        args, kwargs = tuple(map(value_of, args)), {name: value_of(value) for name, value in kwargs.items()}
        if self.transforms:
            inner = ThreadedFunction(self.block, self.path, self.name, self.transforms[:-1])
            return unguarded(lambda: self.transforms[-1].apply(inner)(*args, **kwargs))
        record = self.block.get(self.path)
        note_place(record, self.block.name, self.path)
        value, successor = unguarded(lambda: self.take(record, args, kwargs))
        if successor is not None:
            self.block.put(self.path, successor, by=self.suffix())
        return value
