"""Blocks: what an open `thread` block knows, and what it guards against.

A *block* is one `with thread(record) as t:` while it is open: the record as it is now, with every successor so far in
its place. Handles and proxies (see `proxies`) hold no values; they ask the block.

While a block is open it watches the public methods of records, so that a successor cannot get lost beside it:

- a record whose successor was taken may not be called any more, wherever the call stands;
- a part of the threaded record that is called directly, `self.bn(x)` where `t.bn(x)` is meant, may not return a
  successor. Which records are parts is told by identity. Calls *through* the handle are free to do as they like inside:
  there the parts are called by the record that they belong to, which returns their successors in its own.

With no block open, nothing is watched.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any, TypeVar, cast

import equinox as eqx
from weft.core.edge.levels import current_level
from weft.core.edge.trees import PyTree
from weft.core.errors import SuccessorError, TraceLevelError
from weft.core.paths import Path, format_path
from weft.core.records import module
from weft.core.records.successors import (
    check_successor,
    find_records,
    is_alike,
    next_value,
    part_of,
    records_in,
    with_part,
)


class Block:
    """An open block: the record as it is now, and the records that were replaced on the way."""

    def __init__(self, record: eqx.Module | None):
        self.name = type(record).__qualname__
        # Where the record is in that of the block around a transform, which paths begin in.
        self.base: Path = ()
        self.record: eqx.Module | None = record
        self.level = current_level()
        self.closed: str | None = None
        # What the user may still hold parts of, beside the handle; the latest record is the handle's alone.
        self.original: eqx.Module | None = record
        # By identity; the record itself is kept, so that its id stays its own.
        self.replaced: dict[int, tuple[object, Path]] = {}
        # Records that `peek` gave away, to be called by hand.
        self.peeked: list[PyTree] = []
        self._parts: dict[int, Path] | None = None

    @staticmethod
    def inside(record: eqx.Module | None, name: str, base: Path) -> Block:
        """The block of a record inside of a transform, for the parts of another block: under the names of that.

        Without a record it is a name alone.
        """
        block = Block(record)
        block.name, block.base = name, base
        return block

    def format(self, path: Path) -> str:
        """A path as errors call it: `Net.blocks[0].bn`."""
        return format_path(path, self.name)

    def format_handle(self, path: Path) -> str:
        """A path as the user writes it: `t.blocks[0].bn`."""
        return format_path(path, "t")

    def get(self, path: Path) -> PyTree:
        """What is at a path now."""
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
        """Puts a successor in its place, if it fits there; `by` says how it came, for errors."""
        old = self.get(path)
        if successor is old:
            return
        successor = next_value(old, successor)
        if not is_alike(old, successor):
            check_successor(old, successor, self.format(path) + by)
        if current_level() != self.level:
            raise TraceLevelError(
                "a successor was taken inside another transform than its thread block was opened in",
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
        """The record with every successor in its place; the block is closed by it."""
        record = self.get(self.base)
        self.close("done() was called")
        return record

    def close(self, why: str) -> None:
        """Ends the block."""
        # Nothing is kept, so that no tracer outlives its trace through a handle that the user still holds.
        self.closed, self.record, self.replaced = why, None, {}
        self.original, self.peeked, self._parts = None, [], None

    def path_of(self, record: object) -> Path | None:
        """Where a record is in the threaded one, if it is part of it."""
        if self._parts is None:
            # The first path of a record that is in two places; made only once a record is called beside the handle.
            self._parts = {}
            for path, part in records_in(self.original):
                self._parts.setdefault(id(part), path)
        return self._parts.get(id(record))

    def gave_away(self, record: object) -> bool:
        """Whether a record was given out by `peek`, alone or in something larger."""
        return any(part is record for value in self.peeked for _, part in records_in(value))


# --- guarding --------------------------------------------------------------------------------------------------------

# All open blocks, and those of them that mind a direct call here: not inside of a call through a handle.
_open: ContextVar[tuple[Block, ...]] = ContextVar("weft_open_blocks", default=())
_minding: ContextVar[tuple[Block, ...]] = ContextVar("weft_minding_blocks", default=())

R = TypeVar("R")

Tokens = tuple[Token[tuple[Block, ...]], Token[tuple[Block, ...]]]


def open_block(block: Block) -> Tokens:
    """Starts to guard a block's record; what it returns ends it."""
    module.watch_methods(_guard, 1)
    return _open.set((*_open.get(), block)), _minding.set((*_minding.get(), block))


def leave_block(tokens: Tokens) -> None:
    """Ends what `open_block` started."""
    module.watch_methods(_guard, -1)
    _open.reset(tokens[0])
    _minding.reset(tokens[1])


def unguarded(function: Callable[[], R]) -> R:
    """Calls a function in which parts may be called as they are: that of a record that hands on their successors."""
    __tracebackhide__ = True
    token = _minding.set(())
    try:
        return function()
    finally:
        _minding.reset(token)


def _guard(
    record: eqx.Module, method: Callable[..., object], given: module.Given, proceed: Callable[[], PyTree]
) -> PyTree:
    __tracebackhide__ = True
    for block in _open.get():
        found = block.replaced.get(id(record))
        if found is not None:
            name, handle = block.format(found[1]), block.format_handle(found[1])
            raise SuccessorError(
                f"this {type(record).__qualname__} was used after its successor was taken",
                at=name,
                fix=f"go through the handle, {handle}, which always uses the latest successor",
            )
    parts = [(block, path) for block in _minding.get() if (path := block.path_of(record)) is not None]
    if not parts:
        return proceed()
    # A direct call answers for what is called inside of it, as a call through the handle does.
    result = unguarded(proceed)
    if any(True for _ in find_records(cast("type[Any]", type(record)), result)):
        for block, path in parts:
            if not block.gave_away(record):
                raise _direct_call(block, path, record, method.__name__)
    return result


def _direct_call(block: Block, path: Path, record: object, name: str) -> SuccessorError:
    handle, call = block.format_handle(path), "(...)" if name == "__call__" else f".{name}(...)"
    return SuccessorError(
        f"this {type(record).__qualname__} was called directly inside a thread block, which does not see its successor",
        at=block.format(path) + call,
        fix=f"go through the handle, {handle}{call}, which remembers it; or take it by hand, "
        f"y, {handle} = peek({handle}){call}",
    )
