"""Threaded functions: the parts of a threaded record that can be called, as what transforms take for a function.

A transform makes another threaded function of one (`through`), and so on, until it is called. Then the record as it is
now goes in as an argument of all of these transforms, never closed over: as what is called, `Part(record, ...)`, which
is a tree. Out comes `(value, changes)`, where the changes are the sparse updates that make the successor, so that
nothing leaves a transform but what changed; they are written back when the outermost transform has returned.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax.tree_util as jtu
from weft.core.edge import trees
from weft.core.edge.trees import PyTree
from weft.core.errors import WeftError
from weft.core.paths import Path
from weft.core.records.origins import arguments_by_name, check_origin
from weft.core.records.partition import changes, update
from weft.core.records.successors import check_successor, take_successor
from weft.core.threads.blocks import Block, unguarded
from weft.core.threads.lost import note_place


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
    """What a transform does to a part: from a function that returns `Returned` to another one.

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


class Returned(NamedTuple):
    """What a part returns inside of transforms: its value, and the sparse changes of its record or None."""

    value: PyTree
    successor: PyTree


class Part:
    """A record and what is to be done with it, as a function of the other arguments.

    A tree that holds the record: that is how it goes into a transform.
    """

    def __init__(self, record: eqx.Module, function: ThreadedFunction):
        self.record = record
        self.function = function

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> Returned:
        return self.function.pure(self.record, args, kwargs)

    @property
    def remembered_by(self) -> eqx.Module:
        """Whose what a transform learns of this part is; see `memory`."""
        return self.record

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.function.bound(self.record))

    @property
    def __name__(self) -> str:
        return self.function.describe()


trees.register_node_with_keys(
    Part,
    lambda part: ([(jtu.GetAttrKey("record"), part.record)], part.function),
    lambda function, children: Part(next(iter(children)), function),
    lambda part: ([part.record], part.function),
)


class ThreadedFunction:
    """A method of a threaded record, or what transforms made of it; a call writes the successor back.

    Attributes:
        block, path: where the record is.
        name: of the method.
        transforms: what is done to it, the innermost first: each takes a `Part` and makes a function that returns
            what one returns.
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

    def describe(self) -> str:
        """The function as errors call it: `Net.bn`, `Net.attention.decode`."""
        return self.block.format(self.path) + self._suffix("")

    def _suffix(self, call: str = "(...)") -> str:
        return call if self.name == "__call__" else f".{self.name}{call}"

    def through(self, transform: Transform) -> ThreadedFunction:
        """This function under one more transform."""
        return ThreadedFunction(self.block, self.path, self.name, (*self.transforms, transform))

    def bound(self, record: eqx.Module) -> Callable[..., PyTree]:
        """The method of a record."""
        return cast("Callable[..., PyTree]", record) if self.name == "__call__" else getattr(record, self.name)

    def take(
        self, record: eqx.Module, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> tuple[PyTree, eqx.Module | None]:
        """Calls the method of a record: the value and the successor, or None, of what it returned."""
        result = self.bound(record)(*args, **kwargs)
        handle, suffix = self.block.format_handle(self.path), self._suffix()
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

    def pure(self, record: eqx.Module, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> Returned:
        """The function as one of the record too."""
        note_place(record, self.block.name, self.path)
        if self.transforms:
            inner = ThreadedFunction(self.block, self.path, self.name, self.transforms[:-1])
            return self.transforms[-1].apply(Part(record, inner))(*args, **kwargs)
        value, successor = self.take(record, args, kwargs)
        if successor is None or successor is record:
            return Returned(value, None)
        check_successor(record, successor, self.block.format(self.path) + self._suffix())
        return Returned(value, changes(record, successor))

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        __tracebackhide__ = True
        record = self.block.get(self.path)
        note_place(record, self.block.name, self.path)
        args, kwargs = tuple(map(value_of, args)), {name: value_of(value) for name, value in kwargs.items()}
        if self.transforms:
            value, changed = unguarded(lambda: self._transformed(record, args, kwargs))
            successor = None if changed is None else update(record, changed)
        else:
            value, successor = unguarded(lambda: self.take(record, args, kwargs))
        if successor is not None:
            self.block.put(self.path, successor, by=self._suffix())
        return value

    def _transformed(self, record: eqx.Module, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> Returned:
        try:
            return self.pure(record, args, kwargs)
        except WeftError as error:
            # A transform knows the record as what it calls, and its changes as a part of what that returns.
            error.rename(dict.fromkeys(_NAMES_IN_TRANSFORMS, self.block.format(self.path)))
            raise


# How a transform's errors call the record of a part, on its way in and out.
_NAMES_IN_TRANSFORMS = ("<function>[0].record", "output.successor")
