"""Successors: what may follow a record, and how one is put in its place.

The *successor* of a record is the record that a stateful call returns: `y, bn = bn(x)`. It must have the structure of
what it follows, treedef, shapes and dtypes, or it could not be carried through a loop or a compiled step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, cast

import equinox as eqx
import jax
from weft.core import module, trees
from weft.core.errors import SuccessorError
from weft.core.leaves import is_array
from weft.core.paths import Path, format_path, key_part


def part_of(parent: Any, part: Any) -> Any:
    """One step along a path: a record's field, or a container's item."""
    return getattr(parent, part) if isinstance(parent, eqx.Module) else parent[part]


def with_part(parent: Any, path: Path, value: Any) -> Any:
    """A tree of records and containers with another value at a path; everything off the path is shared."""
    if not path:
        return value
    part: Any = path[0]
    child = with_part(part_of(parent, part), path[1:], value)
    if isinstance(parent, eqx.Module):
        return with_field(parent, part, child)
    if isinstance(parent, dict):
        items = {**cast("dict[Any, Any]", parent), part: child}
        return items if type(cast(Any, parent)) is dict else type(cast(Any, parent))(items)
    row = [*parent[:part], child, *parent[part + 1 :]]
    return type(parent)(*row) if hasattr(parent, "_fields") else type(parent)(row)


def with_field(record: eqx.Module, name: str, value: Any) -> eqx.Module:
    """A record with another value in one field; for equinox modules, which have no `replace`, too."""
    if isinstance(record, module.Module):
        return record.replace(**{name: value})
    copy = object.__new__(type(record))
    object.__getattribute__(copy, "__dict__").update(object.__getattribute__(record, "__dict__"), **{name: value})
    return copy


def check_successor(old: Any, new: Any, where: str) -> None:
    """Refuses a successor of another type or structure.

    Args:
        old: a record, a container or an array.
        new: what shall follow it.
        where: what to call the place in an error.

    Raises:
        SuccessorError: naming every path that differs, before and after.
    """
    if type(old) is not type(new) and not (is_array(old) and is_array(new)):
        raise SuccessorError(
            f"the successor of a {type(old).__qualname__} is a {type(new).__qualname__}",
            at=where,
            fix="a stateful method returns (value, successor of its own record); a pure one that returns a pair with "
            "another record in it is called on the record itself: peek(t.part)(...)",
        )
    before, after = _flatten(old), _flatten(new)
    if before[1] == after[1] and all(map(_alike, before[0], after[0])):
        return
    differences = [
        f"{format_path(path, where)}: {describe(was)} -> {describe(now)}" for path, was, now in _differences(old, new)
    ]
    raise SuccessorError(
        "a successor must keep the structure of what it follows",
        at=differences or f"{where}: {before[1]} -> {after[1]}",
        fix="keep shapes, dtypes and static fields; make a new record where they must change",
    )


def _flatten(tree: Any) -> tuple[list[Any], Any]:
    return trees.flatten(tree)


def _alike(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if is_array(old) and is_array(new):
        return old.shape == new.shape and old.dtype == new.dtype
    return type(old) is type(new) and not is_array(old) and bool(old == new)


def _differences(old: Any, new: Any, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """The outermost places where two trees differ: (path, before, after)."""
    ours, theirs = _one_level(old), _one_level(new)
    if ours is None or theirs is None or type(old) is not type(new) or ours.keys() != theirs.keys():
        if ours is not None or theirs is not None or not _alike(old, new):
            yield path, old, new
        return
    if isinstance(old, eqx.Module):
        for field in dataclasses.fields(cast(Any, old)):
            if field.metadata.get("static", False):
                was, now = getattr(old, field.name, None), getattr(new, field.name, None)
                if was != now:
                    yield (*path, field.name), was, now
    for part in ours:
        yield from _differences(ours[part], theirs[part], (*path, part))


def _one_level(tree: Any) -> dict[Any, Any] | None:
    if tree is None:
        return {}
    level = trees.flatten_one_level(tree)
    return None if level is None else {key_part(key): child for key, child in level[0]}


def describe(value: Any) -> str:
    """A leaf as errors print it: an array by its type, `float32[8,5]`; anything else by its type and value."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return repr(value)
    return str(jax.typeof(value)) if is_array(value) else f"{type(value).__name__} {value!r}"[:80]
