"""Trees that must agree: a loop's carry before and after, the outputs of branches.

Two trees agree if they have the same structure, the same static leaves, and arrays of the same shapes and dtypes. Where
they do not, the error lists every difference by path, before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from weft.core import trees
from weft.core.leaves import iter_leaves
from weft.core.paths import Path, format_path
from weft.core.statics import Make, same_static


@dataclass(frozen=True)
class Described:
    """What must not change of a tree: its definition, and for each leaf its type or its static value.

    Attributes:
        make: the tree's definition, or anything that is equal for trees of equal make.
        leaves: by path, a `jax.ShapeDtypeStruct` (or other abstract value) for an array, else `Fixed`.
    """

    make: Any
    leaves: tuple[tuple[Path, Any], ...]


@dataclass(frozen=True, eq=False)
class Fixed:
    """A static leaf."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and same_static(self.value, other.value)

    def __hash__(self) -> int:
        return hash(cast("type[Any]", type(self.value)))

    def __str__(self) -> str:
        return f"static {getattr(self.value, '__name__', None) or repr(self.value)}"


def describe(tree: Any) -> Described:
    """Describes a tree of records."""
    fields: list[Any] = []
    leaves = tuple(
        (leaf.path, jax.typeof(leaf.value) if leaf.dynamic else Fixed(leaf.value))
        for leaf in iter_leaves(tree, fields=fields)
    )
    return Described(Make(trees.structure(tree), tuple(fields)), leaves)


def differences(
    before: Described, after: Described, *, root: str, shapes: bool = True, promotes: bool = False
) -> list[str]:
    """Every difference, as `path: before -> after`; empty if the two agree.

    Args:
        before: one tree.
        after: the other.
        root: the name that paths start with.
        shapes: whether shapes count.
        promotes: whether a weakly typed array before may be of a lower dtype, as where a loop starts.
    """
    was, now = dict(before.leaves), dict(after.leaves)
    found = [
        f"{format_path(path, root)}: {_text(was[path])} -> {_text(now[path])}"
        for path in was
        if path in now and not _agree(was[path], now[path], shapes, promotes)
    ]
    found += [f"{format_path(path, root)}: {_text(was[path])} -> nothing" for path in was if path not in now]
    found += [f"{format_path(path, root)}: nothing -> {_text(now[path])}" for path in now if path not in was]
    if not found and before.make != after.make:
        found.append(f"{root}: {before.make} -> {after.make}")
    return found


def _agree(was: Any, now: Any, shapes: bool, promotes: bool) -> bool:
    if isinstance(was, Fixed) or isinstance(now, Fixed):
        return was == now
    # One leaf is a tree of abstract values where a graph's Variable holds a tree.
    if trees.structure(was) != trees.structure(now):
        return False
    pairs = zip(jax.tree.leaves(was), jax.tree.leaves(now), strict=True)
    return all(_agree_as_arrays(one, other, shapes, promotes) for one, other in pairs)


def _agree_as_arrays(was: Any, now: Any, shapes: bool, promotes: bool) -> bool:
    if shapes and was.shape != now.shape:
        return False
    if was.dtype == now.dtype:
        return True
    # JAX gives a weakly typed first carry (a Python number) the dtype of the carry that follows, if that is no loss.
    return promotes and getattr(was, "weak_type", False) and 0 <= _rank(was.dtype) <= _rank(now.dtype)


_RANKS = (jnp.integer, jnp.floating, jnp.complexfloating)


def _rank(dtype: Any) -> int:
    return next((rank for rank, category in enumerate(_RANKS) if jnp.issubdtype(dtype, category)), -1)


def _text(value: Any) -> str:
    return str(value) if isinstance(value, Fixed) else str(value).lstrip("~")


def subtrees(prefix: Any, tree: Any, is_ride: Callable[[Any], bool], wanted: Any) -> list[Any]:
    """The parts of a tree that ride in one way, by a prefix."""
    if is_ride(prefix):
        return [tree] if prefix is wanted else []
    rides, definition = trees.flatten(prefix, is_ride)
    parts = definition.flatten_up_to(tree)
    return [part for ride, part in zip(rides, parts, strict=True) if ride is wanted]
