"""Aliases: one array, or one whole record, in two places of a tree.

Sharing costs nothing while a tree is only read. But JAX treats each place as a leaf of its own, so an update gives the
two places different values: tied weights are tied no longer, and nobody says so. `refuse_aliases` is called wherever an
update would do that.

Weft recognises an alias by the identity of the array. Inside of a transform identities differ, because JAX gives each
leaf a tracer of its own. So the positions of leaves that are the same array (`repeats_of`) are part of the crossing,
the cache key of the trace, and while the function runs weft knows which tracers stand for the same array
(`known_as_one`). It does not replace them by one tracer: a loop's carry may begin as one array in two places and
continue as two arrays.
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

# From the id of a tracer to the id of an earlier tracer that stands for the same array. A trace may depend on this,
# because the crossings of the calls around, from which it follows, are part of the trace's cache key.
known: ContextVar[Mapping[int, int]] = ContextVar("weft_known_aliases", default=MappingProxyType({}))

Repeats = tuple[int, ...]


def repeats_of(values: Sequence[PyTree]) -> Repeats:
    """For each leaf the position of the first leaf that is the same array; empty if no two leaves are the same.

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
    # Only arrays: Python has one object for each small number.
    places = [first.setdefault(key, i) if is_array(values[i]) else i for i, key in enumerate(identities)]
    return () if places == [*range(len(places))] else tuple(places)


@contextlib.contextmanager
def known_as_one(repeats: Repeats, values: Sequence[PyTree]) -> Generator[None]:
    """While open, tracers whose arrays are the same count as the same; `values` are the tracers of the call, in
    order."""
    # Added to what outer transforms know: the tracers of an outer one are visible here through closures.
    same = {id(values[i]): id(values[place]) for i, place in enumerate(repeats) if place != i}
    if not same:
        yield
        return
    token = known.set({**known.get(), **same})
    try:
        yield
    finally:
        known.reset(token)


def refuse_aliases(tree: PyTree, leaves: Iterable[Leaf], root: Path, updater: str) -> None:
    """Refuses leaves that are the same array in two places.

    Args:
        tree: the tree of the leaves.
        leaves: the leaves that an update would give new values.
        root: the name of the tree in errors; the leaves' paths may start with it or not.
        updater: the function that would update them, for the error.

    Raises:
        AliasError: naming both paths, of the array or of the largest record that is the same in both places.
    """
    first: dict[int, Leaf] = {}
    same = known.get()
    shared: dict[tuple[Path, Path], None] = {}
    for leaf in leaves:
        if not is_array(leaf.value):
            continue
        earlier = first.setdefault(same.get(id(leaf.value), id(leaf.value)), leaf)
        if earlier is not leaf:
            shared[_outermost(tree, earlier.path[earlier.root :], leaf.path[leaf.root :])] = None
    if shared:
        raise AliasError(
            f"{updater} would give one array in two places two different values",
            at=[_described(tree, root, path, alias) for path, alias in shared],
            fix="keep it in one place, and say where else it is used: weft.Shared(model); "
            "or give each place its own: weft.tree.copy(model)",
        )


def _described(tree: PyTree, root: Path, path: Path, alias: Path) -> str:
    name = type(_at(tree, path)).__name__ if isinstance(_at(tree, path), eqx.Module) else "array"
    return f"{format_path((*root, *alias))}: the same {name} as {format_path((*root, *path))}"


def _outermost(tree: PyTree, path: Path, alias: Path) -> tuple[Path, Path]:
    """Both paths, shortened to the largest record that is the same object at both."""
    while path and alias and path[-1] == alias[-1] and _at(tree, path[:-1]) is _at(tree, alias[:-1]):
        path, alias = path[:-1], alias[:-1]
    return path, alias


def _at(tree: Any, path: Path) -> Any:
    return functools.reduce(part_of, path, tree)
