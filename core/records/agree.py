"""Trees that must agree: a loop's carry before and after, the outputs of branches.

Two trees agree if they have the same structure, the same static leaves, and arrays of the same shapes and dtypes. Where
they do not, the error lists every difference by path, before and after.
"""

from __future__ import annotations

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
from weft.core.paths import Path, format_path, key_part
from weft.core.records.configuration import iter_configuration, opened
from weft.core.records.leaves import iter_leaves
from weft.core.records.statics import Make, Static, same_static


@dataclass(frozen=True)
class Described:
    """What must not change of a tree: its definition, and for each leaf its type or its static value.

    Attributes:
        root: what the tree is called; paths start with it.
        make: the tree's definition, with whatever else must be equal.
        leaves: by path, a `jax.ShapeDtypeStruct` (or other abstract value) for an array, else `Fixed` or words.
        parts: the make in words, by path, for where two of them differ.
    """

    root: str
    make: Make
    leaves: tuple[tuple[Path, Any], ...]
    parts: Callable[[], Mapping[Path, object]] = dict[Path, Any]


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


def describe(tree: PyTree, root: str) -> Described:
    """Describes a tree of records, which is called `root`, or nothing."""
    fields: list[object] = []
    start = (root,) if root else ()
    leaves = tuple(
        (leaf.path, _abstract(leaf.value) if leaf.dynamic else Fixed(leaf.value))
        for leaf in iter_leaves(tree, start, fields=fields)
    )
    make = Make(trees.structure(tree), tuple(fields))
    definition = make.treedef  # and not the tree, which may hold tracers
    return Described(root, make, leaves, lambda: parts_of(definition, start))


def parts_of(definition: TreeDef, start: Path) -> dict[Path, object]:
    """The nodes of trees of this definition, in words, and what is configured in its records, by path."""
    try:
        tree = definition.unflatten([_SOME_ARRAY] * definition.num_leaves)
    except Exception:  # a node of another library that takes no such thing
        return {}
    nodes: dict[Path, object] = dict(iter_kinds(tree, start))
    return nodes | {path: Fixed(value) for path, value in iter_configuration(tree, start)}


_SOME_ARRAY = jax.ShapeDtypeStruct((), jnp.float32)


def _abstract(value: Any) -> Any:
    return value if isinstance(value, jax.ShapeDtypeStruct) else jax.typeof(value)


def iter_kinds(tree: PyTree, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """What each node of a tree is called, with its path; None is a node without children."""
    if tree is None:
        yield path, "None"
    level = None if tree is None else trees.flatten_one_level(tree)
    if level is not None:
        yield path, type(opened(tree)).__qualname__
        for key, child in level[0]:
            yield from iter_kinds(child, (*path, key_part(key)))


def differences(
    before: Described, after: Described, *, shapes: bool = True, promotes: bool = False, root: str = ""
) -> list[str]:
    """Every difference, as `path: before -> after`; empty if the two agree.

    Where a part is not there, or is another one, what is below it is not listed.

    Args:
        before: one tree.
        after: the other.
        shapes: whether shapes count.
        promotes: whether a weakly typed array before may be of a lower dtype, as where a loop starts.
        root: what to put in front of every path.
    """

    def agree(was: object, now: object) -> bool:
        return _agree(was, now, shapes, promotes)

    same, was, now = before.make == after.make, dict(before.leaves), dict(after.leaves)
    parts = {} if same else changes_of_parts(before.parts(), after.parts())
    for path, texts in parts.items():
        # A part may stand where the other tree has a leaf.
        one, other = (_text(known.get(path, _NOTHING)) for known in (was, now))
        parts[path] = (one if texts[0] == _NOTHING else texts[0], other if texts[1] == _NOTHING else texts[1])
    leaves = _changes(was, now, agree)
    found = parts | {path: texts for path, texts in leaves.items() if not _is_below(path, parts)}
    if not found and not same:
        start = (before.root,) if before.root else ()
        found = _changes_of_definitions(before.make.treedef, after.make.treedef, start)
    return lines(found, root)


def how_to_lie_alike(found: Sequence[str]) -> str:
    """What else there is to do about these differences, if some may be places on a mesh alone."""
    return "; jax.sharding.reshard lays a value as the other one lies" if any("@" in line for line in found) else ""


_NOTHING = "nothing"
Changes = dict[Path, tuple[str, str]]


def lines(changes: Changes, root: str = "") -> list[str]:
    """Changes, as `path: before -> after`."""
    return [f"{format_path(path, root)}: {was} -> {now}" for path, (was, now) in changes.items()]


def changes_of_parts(before: Mapping[Path, object], after: Mapping[Path, object]) -> Changes:
    """What differs between parts, by path; where one is not there, or is another, nothing of what is below it."""
    found: Changes = {}
    for path, texts in _changes(before, after, operator.eq).items():
        if not _is_below(path, found):
            found[path] = texts
    return found


def _changes(before: Mapping[Path, object], after: Mapping[Path, object], agree: Callable[[Any, Any], bool]) -> Changes:
    """What differs, by path, before and after."""
    found: Changes = {}
    for path in dict.fromkeys((*before, *after)):
        was, now = before.get(path, _NOTHING), after.get(path, _NOTHING)
        if was is _NOTHING or now is _NOTHING or not agree(was, now):
            found[path] = _in_words(_text(was), _text(now))
    return found


def _is_below(path: Path, found: Changes) -> bool:
    """Whether a change was found here, or above."""
    return any(path[:length] in found for length in range(1, len(path) + 1))


def _in_words(was: str, now: str) -> tuple[str, str]:
    return was, now if was != now else f"another {now}"


def _changes_of_definitions(before: TreeDef, after: TreeDef, path: Path) -> Changes:
    """What differs between two definitions of trees that are not equal, or at least where."""
    found: Changes = {}
    keys, other_keys = _keys(before), _keys(after)
    if _kind(before) is _kind(after) and keys == other_keys:
        for key, one, other in zip(keys, before.children(), after.children(), strict=True):
            if one != other:
                found |= _changes_of_definitions(one, other, (*path, key))
        was, now = (_static_attributes(definition, keys) for definition in (before, after))
        found |= _changes(
            {(*path, name): was[name] for name in was}, {(*path, name): now[name] for name in now}, operator.eq
        )
    if not found and same_name(_kind(before), kind := _kind(after)):
        return {path: (_node_text(before), another(cast("type[Any]", kind)))}
    return found or {path: _in_words(_node_text(before), _node_text(after))}


def _kind(definition: TreeDef) -> type[Any] | None:
    return (definition.node_data() or (None,))[0]


def _keys(definition: TreeDef) -> list[Hashable]:
    """The path part of each child."""
    level = trees.flatten_one_level(definition.unflatten([0] * definition.num_leaves))
    return [key_part(key) for key, _ in level[0]] if level is not None else []


def _static_attributes(definition: TreeDef, keys: Sequence[Hashable]) -> dict[str, Fixed]:
    """What an object keeps beside its children."""
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
    # One leaf is a tree of abstract values where a graph's Variable holds a tree.
    if trees.structure(was) != trees.structure(now):
        return False
    pairs = zip(jax.tree.leaves(was), jax.tree.leaves(now), strict=True)
    return all(_agree_as_arrays(one, other, shapes, promotes) for one, other in pairs)


def _agree_as_arrays(was: jax.ShapeDtypeStruct, now: jax.ShapeDtypeStruct, shapes: bool, promotes: bool) -> bool:
    if shapes and (was.shape != now.shape or not _lie_alike(was, now)):
        return False
    if was.dtype == now.dtype:
        return True
    # JAX gives a weakly typed first carry (a Python number) the dtype of the carry that follows, if that is no loss.
    return promotes and getattr(was, "weak_type", False) and 0 <= _rank(was.dtype) <= _rank(now.dtype)


def _lie_alike(was: Any, now: Any) -> bool:
    """Whether two types say the same place, on an explicit mesh: JAX compares that, too, unless one is on no mesh."""
    if not isinstance(was, ShapedArray) or not isinstance(now, ShapedArray):
        return True
    one, other = was.sharding, now.sharding
    return one.mesh.empty or other.mesh.empty or one.spec == other.spec


_RANKS = (jnp.integer, jnp.floating, jnp.complexfloating)


def _rank(dtype: Any) -> int:
    return next((rank for rank, category in enumerate(_RANKS) if jnp.issubdtype(dtype, category)), -1)


def _text(value: object) -> str:
    return str(value) if isinstance(value, Fixed) else str(value).lstrip("~")
