"""Aliases: one array, or one whole record, in two places of a tree.

Sharing costs nothing while a tree is only read. But each place is a leaf of its own for JAX, so an update gives each
its own new value, and what was one comes apart. `refuse_aliases` is asked wherever an update would do that.

Arrays are told apart by identity. Inside of a transform that is gone: JAX gives each leaf a tracer of its own. So what
was one outside is noted as a call crosses (`crossing_with`), and the tracers are known as one inside (`inside_of`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import equinox as eqx
from weft.core.edge.trees import PyTree
from weft.core.errors import AliasError
from weft.core.paths import Path, format_path
from weft.core.records.leaves import Leaf, is_array
from weft.core.records.successors import part_of

# The call that is crossing into a transform: its crossing, and for each leaf the first position of the same array.
_crossing: ContextVar[tuple[object, Sequence[int]] | None] = ContextVar("weft_crossing_aliases", default=None)
# Tracers that stand for an array for which another one stands too: from id to the id of the first.
_known: ContextVar[Mapping[int, int]] = ContextVar("weft_known_aliases", default=MappingProxyType({}))


@contextlib.contextmanager
def crossing_with(crossing: object, values: Sequence[PyTree]) -> Generator[None]:
    """Notes which leaves of a call are one, for as long as its function may be traced."""
    known = _known.get()
    identities = [known.get(id(value), id(value)) for value in values] if known else [*map(id, values)]
    if len(set(identities)) == len(identities):
        yield
        return
    first: dict[int, int] = {}
    # Only arrays: Python keeps one object for each small number.
    places = [first.setdefault(one, i) if is_array(values[i]) else i for i, one in enumerate(identities)]
    token = _crossing.set((crossing, places))
    try:
        yield
    finally:
        _crossing.reset(token)


@contextlib.contextmanager
def inside_of(crossing: object, values: Sequence[PyTree]) -> Generator[None]:
    """Knows the tracers of a call as one where its arrays were; `values` are they, in order."""
    entered = _crossing.get()
    if entered is None or entered[0] is not crossing:
        yield
        return
    same = {id(values[i]): id(values[place]) for i, place in enumerate(entered[1]) if place != i}
    token = _known.set({**_known.get(), **same})
    try:
        yield
    finally:
        _known.reset(token)


def refuse_aliases(tree: PyTree, leaves: Iterable[Leaf], root: Path, what: str) -> None:
    """Refuses leaves that are one array in two places.

    Args:
        tree: what the leaves are of.
        leaves: those that an update would give new values.
        root: what errors call the tree; the leaves' paths may start with it or not.
        what: who would update them, for the error.

    Raises:
        AliasError: naming both paths: of the outermost thing that is one in both places.
    """
    first: dict[int, Leaf] = {}
    known = _known.get()
    shared: dict[tuple[Path, Path], None] = {}
    for leaf in leaves:
        if not is_array(leaf.value):
            continue
        other = first.setdefault(known.get(id(leaf.value), id(leaf.value)), leaf)
        if other is not leaf:
            shared[_outermost(tree, other.path[other.root :], leaf.path[leaf.root :])] = None
    if shared:
        raise AliasError(
            f"{what} would give one thing in two places two different values",
            at=[_described(tree, root, one, other) for one, other in shared],
            fix="keep it in one place, and say where else it is used: weft.Shared(model); "
            "or give each place its own: weft.tree.copy(model)",
        )


def _described(tree: PyTree, root: Path, one: Path, other: Path) -> str:
    name = type(_at(tree, one)).__name__ if isinstance(_at(tree, one), eqx.Module) else "array"
    return f"{format_path((*root, *other))}: the same {name} as {format_path((*root, *one))}"


def _outermost(tree: PyTree, one: Path, other: Path) -> tuple[Path, Path]:
    """Both paths, cut to where what they lead to is one and the same thing for the last time."""
    while one and other and one[-1] == other[-1] and _at(tree, one[:-1]) is _at(tree, other[:-1]):
        one, other = one[:-1], other[:-1]
    return one, other


def _at(tree: Any, path: Path) -> Any:
    return functools.reduce(part_of, path, tree)
