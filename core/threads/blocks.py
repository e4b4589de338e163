"""Blocks: the state of an open `thread` block, the misuses that it reports, and its parts as functions for transforms.

A *block* is the state of one `with thread(record) as t:` while it is open: the record with every successor so far in
its place. Handles and proxies (see `handle`) hold no values; they ask the block.

While a block is open it watches the public methods of records, so that no successor gets lost:

- a record whose successor was taken may not be called again, from anywhere;
- a part of the threaded record that is called directly (`self.bn(x)` in place of `t.bn(x)`) may not return a successor.
  The block knows its parts by identity. During a call *through* the handle parts may be called directly: the record
  that the handle calls returns their successors in its own.

With no block open, nothing is watched.

A *threaded function* is a part that can be called, and that transforms take as a function. A transform of one is a
threaded function again (`through`); the transforms are applied when it is called. Then the boundary
`core/interpreter/threaded.py` passes the current record into the transform as an argument, never as a closure, and
writes its changes back when the transform has returned.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import equinox as eqx
from weft.core.caches import cached_by
from weft.core.edge.contexts import current_level
from weft.core.edge.trees import PyTree
from weft.core.errors import SuccessorError, TraceLevelError
from weft.core.paths import Path, format_path
from weft.core.records import module
from weft.core.records.leaves import is_array
from weft.core.records.successors import (
    arguments_by_name,
    check_origin,
    check_successor,
    find_records,
    is_alike,
    is_usual_pair,
    next_value,
    part_of,
    records_in,
    take_successor,
    with_part,
)
from weft.core.threads.calls import note_place


class Block:
    """An open block: the record with every successor so far, and the records that successors have replaced."""

    def __init__(self, record: eqx.Module | None, name: str, base: Path = ()):
        self.name = name
        # For a block inside of a transform: the path of its record in the record of the outer block. Paths start there.
        self.base = base
        self.record: eqx.Module | None = record
        self.level = current_level()
        self.closed: str | None = None
        # The user has parts of this record (as `self.bn`), of which a direct call must be noticed. Later versions of
        # the record are known to the block alone.
        self.original: eqx.Module | None = record
        # By the record's id. The record is stored too, so that no new record gets its id.
        self.replaced: dict[int, tuple[object, Path]] = {}
        # Records that the user got from `peek`, to be called directly.
        self.peeked: list[PyTree] = []
        self._parts: dict[int, Path] | None = None

    def format(self, path: Path) -> str:
        """A path as errors call it: `Net.blocks[0].bn`."""
        return format_path(path, self.name)

    def format_handle(self, path: Path) -> str:
        """A path as the user writes it: `t.blocks[0].bn`."""
        return format_path(path, "t")

    def get(self, path: Path) -> PyTree:
        """The current value at a path."""
        if self.closed is not None:
            raise SuccessorError(
                f"this thread handle is closed: {self.closed}",
                at=self.format(path),
                fix="use it only between `with thread(...)` and `t.done(...)`",
            )
        value = self.record
        for part in path[len(self.base) :]:
            value = part_of(value, part)
        return value

    def put(self, path: Path, successor: PyTree, by: str = "") -> None:
        """Puts a successor into its place, if it fits there; `by` is the call that returned it, for errors."""
        old = self.get(path)
        if successor is old:
            return
        # `is_alike` compares most successors without describing both trees, which `check_successor` does for its error.
        successor = next_value(old, successor)
        if not is_alike(old, successor):
            check_successor(old, successor, self.format(path) + by)
        if current_level() != self.level:
            raise TraceLevelError(
                "a successor was returned inside a transform, but its thread block was opened outside of it",
                at=self.format(path) + by,
                fix="give the part itself to one of weft's transforms, as in "
                f"weft.vmap({self.format_handle(path)})(x) or weft.scan(...), or pass the record through the transform "
                "as an argument and take its successor from the result",
            )
        self.record = with_part(self.record, path[len(self.base) :], successor, lenient=bool(by))
        if isinstance(old, eqx.Module):
            self.replaced[id(old)] = (old, path)
            self.replaced.pop(id(successor), None)

    def finish(self) -> PyTree:
        """Closes the block, and returns the record with every successor in its place."""
        record = self.get(self.base)
        self.close("done() was called")
        return record

    def close(self, why: str) -> None:
        """Ends the block."""
        # Without its records: a handle that the user stores somewhere would keep tracers alive after their trace.
        self.closed, self.record, self.replaced = why, None, {}
        self.original, self.peeked, self._parts = None, [], None

    def path_of(self, record: object) -> Path | None:
        """The path of a record in the threaded one; None if it is no part of it."""
        if self._parts is None:
            # Collected when a record is first called directly, which few programs do. A record in two places is known
            # by its first path.
            self._parts = {}
            for path, part in records_in(self.original):
                self._parts.setdefault(id(part), path)
        return self._parts.get(id(record))

    def gave_away(self, record: object) -> bool:
        """Whether the user got a record from `peek`, directly or inside of a container or record."""
        return any(part is record for value in self.peeked for _, part in records_in(value))


@cached_by("name of a record's class")
def without_record(name: str) -> Block:
    """A block that only gives functions a name, without a record."""
    return Block(None, name)


# --- guarding --------------------------------------------------------------------------------------------------------

# All open blocks, and those that refuse direct calls of their parts: none do inside of a call through a handle.
_open: ContextVar[tuple[Block, ...]] = ContextVar("weft_open_blocks", default=())
_refusing: ContextVar[tuple[Block, ...]] = ContextVar("weft_blocks_that_refuse", default=())

R = TypeVar("R")

Tokens = tuple[Token[tuple[Block, ...]], Token[tuple[Block, ...]]]


def open_block(block: Block) -> Tokens:
    """Starts to watch calls of a block's records; returns the tokens for `leave_block`."""
    module.watch_methods(_guard, 1)
    return _open.set((*_open.get(), block)), _refusing.set((*_refusing.get(), block))


def leave_block(tokens: Tokens) -> None:
    """Ends the watch that `open_block` started."""
    module.watch_methods(_guard, -1)
    _open.reset(tokens[0])
    _refusing.reset(tokens[1])


def unguarded(function: Callable[[], R]) -> R:
    """Calls a function in which parts may be called directly, because it belongs to a record that returns their
    successors in its own."""
    __tracebackhide__ = True
    token = _refusing.set(())
    try:
        return function()
    finally:
        _refusing.reset(token)


def _guard(
    record: eqx.Module, method: Callable[..., object], arguments: module.Given, proceed: Callable[[], PyTree]
) -> PyTree:
    __tracebackhide__ = True
    for block in _open.get():
        replaced = block.replaced.get(id(record))
        if replaced is not None:
            name, handle = block.format(replaced[1]), block.format_handle(replaced[1])
            raise SuccessorError(
                f"this {type(record).__qualname__} was used after its successor was taken",
                at=name,
                fix=f"go through the handle, {handle}, which always uses the latest successor",
            )
    parts = [(block, path) for block in _refusing.get() if (path := block.path_of(record)) is not None]
    if not parts:
        return proceed()
    # The record returns the successors of the parts that it calls in its own, as in a call through the handle. So only
    # the result of this call is examined.
    result = unguarded(proceed)
    if any(True for _ in find_records(cast("type[Any]", type(record)), result)):
        for block, path in parts:
            if not block.gave_away(record):
                call = "(...)" if method.__name__ == "__call__" else f".{method.__name__}(...)"
                handle = block.format_handle(path)
                raise SuccessorError(
                    f"this {type(record).__qualname__} was called directly inside a thread block, which does not see "
                    "its successor",
                    at=block.format(path) + call,
                    fix=f"go through the handle, {handle}{call}, which remembers it; or take it by hand, "
                    f"y, {handle} = peek({handle}){call}",
                )
    return result


# --- paths, and threaded functions ------------------------------------------------------------------------------------


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
        if successor is not None:
            check_origin(record, successor, arguments_by_name(args, kwargs), where)
            return value, successor
        # A record in the successor's place that is no successor of this record (its structure differs) is refused: as
        # part of the value, the state in it would be lost.
        row = cast("tuple[Any, ...]", result) if type(result) is tuple else ()
        if len(row) > 1 and isinstance(row[-1], eqx.Module):
            check_successor(record, row[-1], where)
        return value, None

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
