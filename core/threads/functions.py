"""Threaded functions: the parts of a threaded record that can be called, as what transforms take for a function.

A transform makes another threaded function of one (`through`), and so on, until it is called. What it then means that a
part crosses into a transform is a boundary, `core/interpreter/threaded.py`: the record as it is now goes in as an
argument, never closed over, and what changes of it is written back when the transform has returned.
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
from weft.core.threads.blocks import Block, unguarded
from weft.core.threads.debugging import note_place


class Proxy:
    """A path from an open handle. It holds no value: each use reads what is there now."""

    __slots__ = ("_weft_block", "_weft_path")

    # As an argument it would be taken for configuration: what is to go into a function is the record.
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
    """Where in the threaded record a proxy points."""
    return object.__getattribute__(proxy, "_weft_path")


def value_of(value: PyTree) -> PyTree:
    """What a proxy stands for now; anything else is itself."""
    return block_of(value).get(path_of(value)) if isinstance(value, Proxy) else value


@dataclass(frozen=True, eq=False)
class Transform:
    """What a transform does to a function, here to a part.

    Attributes:
        apply: does it.
        key: what tells it apart from others, its options: a block is opened anew at each call, and what was compiled
            for the part before shall be found again.
    """

    apply: Callable[[Callable[..., Any]], Callable[..., Any]]
    key: tuple[object, ...]

    def __eq__(self, other: object) -> bool:
        return type(other) is Transform and self.key == other.key

    def __hash__(self) -> int:
        return 0  # options need not be hashable


class ThreadedFunction:
    """A method of a threaded record, or what transforms made of it; a call writes the successor back.

    Attributes:
        block, path: where the record is.
        name: of the method.
        transforms: what is done to it, the innermost first.
    """

    def __init__(self, block: Block, path: Path, name: str, transforms: tuple[Transform, ...] = ()):
        self.block, self.path, self.name, self.transforms = block, path, name, transforms

    # Two are the same inside of a compiled function: what a trace needs of the block is what it is called.
    def _key(self) -> tuple[object, ...]:
        return self.block.name, self.path, self.name, self.transforms

    def __eq__(self, other: object) -> bool:
        return type(other) is ThreadedFunction and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

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
        """Whose what a transform learns of this part is; see `memory`."""
        return self.block.get(self.path)

    def describe(self) -> str:
        """The function as errors call it: `Net.bn`, `Net.attention.decode`."""
        return self.block.format(self.path) + self.suffix("")

    def suffix(self, call: str = "(...)") -> str:
        """What follows the record's path where it is called: `(...)`, `.decode(...)`."""
        return call if self.name == "__call__" else f".{self.name}{call}"

    def through(self, transform: Transform) -> ThreadedFunction:
        """This function under one more transform."""
        return ThreadedFunction(self.block, self.path, self.name, (*self.transforms, transform))

    def on(self, block: Block) -> ThreadedFunction:
        """This function of another block."""
        return ThreadedFunction(block, self.path, self.name, self.transforms)

    def named(self) -> ThreadedFunction:
        """This function of no block, to be kept."""
        return self.on(Block.inside(None, self.block.name, ()))

    def bound(self, record: eqx.Module) -> Callable[..., PyTree]:
        """The method of a record."""
        return cast("Callable[..., PyTree]", record) if self.name == "__call__" else getattr(record, self.name)

    def take(
        self, record: eqx.Module, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> tuple[PyTree, eqx.Module | None]:
        """Calls the method of a record: the value and the successor, or None, of what it returned."""
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
            # What stands where successors do, and is none, is refused: state would be lost with it.
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
