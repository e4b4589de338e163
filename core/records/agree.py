"""Lists the differences between two trees that must agree: a loop's carry before and after, the outputs of branches.

Two trees agree if they have the same treedef, the same static leaves, and arrays of the same shapes and dtypes. If they
do not, the error lists every difference by path, before and after.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from weft.core.definitions import another, same_name
from weft.core.edge import trees
from weft.core.edge.trees import PyTree, TreeDef
from weft.core.paths import Path, format_path
from weft.core.records.configuration import iter_configuration, opened
from weft.core.records.leaves import iter_leaves
from weft.core.records.storage import Make, Static, same_static


@dataclass(frozen=True)
class TreeDescription:
    """The parts of a tree that must stay the same: its treedef, and for each leaf its aval or its static value.

    Attributes:
        root: the name of the tree; paths start with it.
        make: the treedef, with the types of static fields, which treedefs do not compare.
        leaves: by path, an aval for an array, and `Fixed` or a text for any other leaf.
        parts: the nodes of the tree as text, by path, for two treedefs that differ.
    """

    root: str
    make: Make
    leaves: tuple[tuple[Path, Any], ...]
    parts: Callable[[], Mapping[Path, object]] = dict[Path, Any]


@dataclass(frozen=True, eq=False)
class Fixed:
    """A static leaf; equal to another if their types and values are."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and same_static(self.value, other.value)

    def __hash__(self) -> int:
        return hash(cast("type[Any]", type(self.value)))

    def __str__(self) -> str:
        return f"static {getattr(self.value, '__name__', None) or repr(self.value)}"


def describe(tree: PyTree, root: str) -> TreeDescription:
    """Describes a tree of records, whose paths start with `root` unless that is empty."""
    fields: list[object] = []
    start = (root,) if root else ()
    leaves = tuple(
        (leaf.path, _abstract(leaf.value) if leaf.dynamic else Fixed(leaf.value))
        for leaf in iter_leaves(tree, start, fields=fields)
    )
    make = Make(trees.structure(tree), tuple(fields))
    definition = make.treedef  # the lambda closes over this and not over the tree, which may hold tracers
    return TreeDescription(root, make, leaves, lambda: parts_of(definition, start))


def parts_of(definition: TreeDef, start: Path) -> dict[Path, object]:
    """The type names of the nodes of a treedef, and the configuration of its records, by path."""
    try:
        tree = definition.unflatten([_SOME_ARRAY] * definition.num_leaves)
    except Exception:  # a node of another library refuses a ShapeDtypeStruct
        return {}
    nodes: dict[Path, object] = dict(iter_kinds(tree, start))
    return nodes | {path: Fixed(value) for path, value in iter_configuration(tree, start)}


_SOME_ARRAY = jax.ShapeDtypeStruct((), jnp.float32)


def _abstract(value: Any) -> Any:
    return value if isinstance(value, jax.ShapeDtypeStruct) else jax.typeof(value)


def iter_kinds(tree: PyTree, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """The type name of each node of a tree, with its path; None is a node without children."""
    if tree is None:
        yield path, "None"
    elif trees.children_of(tree) is not None:
        yield path, type(opened(tree)).__qualname__
        for part, child in trees.children_by_part(tree):
            yield from iter_kinds(child, (*path, part))


def differences(
    before: TreeDescription, after: TreeDescription, *, shapes: bool = True, promotes: bool = False, root: str = ""
) -> list[str]:
    """Every difference, as `path: before -> after`; empty if the two trees agree.

    If a node is missing or has another type, the differences below it are not listed.

    Args:
        before: the first tree.
        after: the second tree.
        shapes: whether shapes are compared.
        promotes: whether a weakly typed array of `before` may have a lower dtype, as the initial carry of a loop may.
        root: a prefix for every path.
    """
    same, was, now = before.make == after.make, dict(before.leaves), dict(after.leaves)
    parts = {} if same else changes_of_parts(before.parts(), after.parts())
    for path, texts in parts.items():
        # A node of one tree may lie where the other tree has a leaf.
        old, new = (_text(described.get(path, _NOTHING)) for described in (was, now))
        parts[path] = (old if texts[0] == _NOTHING else texts[0], new if texts[1] == _NOTHING else texts[1])
    leaves = _changes(was, now, functools.partial(_agree, shapes=shapes, promotes=promotes))
    changes = parts | {path: texts for path, texts in leaves.items() if not _is_below(path, parts)}
    if not changes and not same:
        start = (before.root,) if before.root else ()
        changes = _changes_of_definitions(before.make.treedef, after.make.treedef, start)
    return lines(changes, root)


def how_to_lie_alike(differing: Sequence[str]) -> str:
    """More advice about these differences, if some of them may be different shardings: avals show these by `@`."""
    return "; jax.sharding.reshard gives a value another sharding" if any("@" in line for line in differing) else ""


_NOTHING = "nothing"
Changes = dict[Path, tuple[str, str]]


def lines(changes: Changes, root: str = "") -> list[str]:
    """Changes as lines of text, `path: before -> after`."""
    return [f"{format_path(path, root)}: {was} -> {now}" for path, (was, now) in changes.items()]


def changes_of_parts(before: Mapping[Path, object], after: Mapping[Path, object]) -> Changes:
    """The nodes that differ, by path, without differences below one that differs."""
    changes: Changes = {}
    for path, texts in _changes(before, after, operator.eq).items():
        if not _is_below(path, changes):
            changes[path] = texts
    return changes


def _changes(before: Mapping[Path, object], after: Mapping[Path, object], agree: Callable[[Any, Any], bool]) -> Changes:
    """The entries that differ, by path, as text before and after."""
    changes: Changes = {}
    for path in dict.fromkeys((*before, *after)):
        was, now = before.get(path, _NOTHING), after.get(path, _NOTHING)
        if was is _NOTHING or now is _NOTHING or not agree(was, now):
            changes[path] = _in_words(_text(was), _text(now))
    return changes


def _is_below(path: Path, changes: Changes) -> bool:
    """Whether there is a change at a path or above it."""
    return any(path[:length] in changes for length in range(1, len(path) + 1))


def _in_words(was: str, now: str) -> tuple[str, str]:
    return was, now if was != now else f"another {now}"


def _changes_of_definitions(before: TreeDef, after: TreeDef, path: Path) -> Changes:
    """The differences between two treedefs that are not equal; if none can be named, the path of the node."""
    changes: Changes = {}
    keys = _keys(before)
    if _kind(before) is _kind(after) and keys == _keys(after):
        for key, child_before, child_after in zip(keys, before.children(), after.children(), strict=True):
            if child_before != child_after:
                changes |= _changes_of_definitions(child_before, child_after, (*path, key))
        was, now = (_static_attributes(definition, keys) for definition in (before, after))
        changes |= _changes(
            {(*path, name): was[name] for name in was}, {(*path, name): now[name] for name in now}, operator.eq
        )
    if not changes and same_name(_kind(before), kind := _kind(after)):
        return {path: (_node_text(before), another(cast("type[Any]", kind)))}
    return changes or {path: _in_words(_node_text(before), _node_text(after))}


def _kind(definition: TreeDef) -> type[Any] | None:
    return (definition.node_data() or (None,))[0]


def _keys(definition: TreeDef) -> list[Hashable]:
    """The path part of each child."""
    return [part for part, _ in trees.children_by_part(definition.unflatten([0] * definition.num_leaves))]


def _static_attributes(definition: TreeDef, keys: Sequence[Hashable]) -> dict[str, Fixed]:
    """The attributes of a node's object that are not its children."""
    attributes: dict[str, object] = getattr(definition.unflatten([0] * definition.num_leaves), "__dict__", {})
    children = set(map(str, keys))
    return {name: Fixed(value) for name, value in attributes.items() if name not in children}


def _node_text(definition: TreeDef) -> str:
    kind = _kind(definition)
    if kind is None:
        return "a leaf" if definition.num_leaves else "None"
    if kind is Static:
        return str(Fixed(cast(Any, definition.node_data())[1].value))
    return f"{kind.__name__} of {_keys(definition) if kind is dict else len(definition.children())}"


def _agree(was: object, now: object, shapes: bool, promotes: bool) -> bool:
    if isinstance(was, Fixed | str) or isinstance(now, Fixed | str):
        return was == now
    # The value of an NNX Variable may be a tree of arrays, which is one leaf here.
    if trees.structure(was) != trees.structure(now):
        return False
    pairs = zip(jax.tree.leaves(was), jax.tree.leaves(now), strict=True)
    return all(_agree_as_arrays(old, new, shapes, promotes) for old, new in pairs)


def _agree_as_arrays(was: jax.ShapeDtypeStruct, now: jax.ShapeDtypeStruct, shapes: bool, promotes: bool) -> bool:
    if not (hasattr(was, "shape") and hasattr(now, "shape")):
        return was == now  # the type of a hijax box
    if shapes and (was.shape != now.shape or not _same_sharding(was, now)):
        return False
    if was.dtype == now.dtype:
        return True
    # JAX gives a weakly typed first carry (a Python number) the dtype of the carry that follows, if that is no loss.
    return promotes and getattr(was, "weak_type", False) and 0 <= _rank(was.dtype) <= _rank(now.dtype)


def _same_sharding(was: Any, now: Any) -> bool:
    """Whether two avals have the same sharding on an explicit mesh. JAX compares it too, unless one is on no mesh."""
    if not isinstance(was, ShapedArray) or not isinstance(now, ShapedArray):
        return True
    old, new = was.sharding, now.sharding
    return old.mesh.empty or new.mesh.empty or old.spec == new.spec


_RANKS = (jnp.integer, jnp.floating, jnp.complexfloating)


def _rank(dtype: Any) -> int:
    return next((rank for rank, category in enumerate(_RANKS) if jnp.issubdtype(dtype, category)), -1)


def _text(value: object) -> str:
    return str(value) if isinstance(value, Fixed) else str(value).lstrip("~")
