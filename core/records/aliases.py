"""Aliases: one array, or one whole record, in two places of a tree.

Sharing costs nothing while a tree is only read. But each place is a leaf of its own for JAX, so an update gives each
its own new value, and what was one comes apart. `refuse_aliases` is asked wherever an update would do that.

Arrays are told apart by identity. Inside of a transform that is gone: JAX gives each leaf a tracer of its own. So which
leaves are one array (`repeats_of`) is part of the crossing, the key of what is traced, and the tracers of such leaves
are known as one while the function runs (`known_as_one`). They are not made one tracer: a loop's carry may begin as one
array in two places and go on as two.
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

# Tracers that stand for an array for which another one stands too: from id to the id of the first. What it holds
# follows from the crossings of the calls around, which are the keys of the traces that read it.
known: ContextVar[Mapping[int, int]] = ContextVar("weft_known_aliases", default=MappingProxyType({}))

Repeats = tuple[int, ...]


def repeats_of(values: Sequence[PyTree]) -> Repeats:
    """Which leaves are one array: for each leaf the position of the first that it is, or nothing if all are apart.

    >>> import jax.numpy as jnp
    >>> x, y = jnp.ones(2), jnp.ones(2)
    >>> repeats_of([x, y, x]), repeats_of([x, y, 0.5, 0.5])
    ((0, 1, 0), ())
    """
    same = known.get()
    identities = [same.get(id(value), id(value)) for value in values] if same else [*map(id, values)]
    if len(set(identities)) == len(identities):
        return ()
    first: dict[int, int] = {}
    # Only arrays: Python keeps one object for each small number.
    places = [first.setdefault(one, i) if is_array(values[i]) else i for i, one in enumerate(identities)]
    return () if places == [*range(len(places))] else tuple(places)


@contextlib.contextmanager
def known_as_one(repeats: Repeats, values: Sequence[PyTree]) -> Generator[None]:
    """Knows the tracers of a call as one where its arrays were; `values` are they, in order."""
    same = {id(values[i]): id(values[place]) for i, place in enumerate(repeats) if place != i}
    if not same:
        yield
        return
    token = known.set({**known.get(), **same})
    try:
        yield
    finally:
        known.reset(token)


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
    same = known.get()
    shared: dict[tuple[Path, Path], None] = {}
    for leaf in leaves:
        if not is_array(leaf.value):
            continue
        other = first.setdefault(same.get(id(leaf.value), id(leaf.value)), leaf)
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
