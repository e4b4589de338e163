"""Cycles: a record in itself, which no tree function would come to the end of.

A frozen record can come to be in itself while its constructor runs, or through what can be changed in place: a list, a
dict, an object that a static field holds. JAX's flattening of such a tree ends in a RecursionError that names nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any, cast

import equinox as eqx
from weft.core.errors import StructureError
from weft.core.paths import Path, format_path
from weft.core.records.configuration import opened
from weft.core.records.leaves import is_array

# What values are mostly made of, and what leads nowhere.
_ENDS = {str, bytes, bool, int, float, complex, type(None), type}
# An object that leads to more than this is the program's, and no part of a model.
_MOST = 1_000


def refuse_cycles(record: eqx.Module, values: dict[str, Any]) -> None:
    """Refuses a record that its fields lead back to. Records in them are not entered: they were looked at when made.

    Raises:
        StructureError: with the path back to it.
    """
    done: set[int] = set()
    for field, value in values.items():
        path = _way_back(record, opened(value), (field,), done)
        if path is not None:
            name = type(record).__qualname__
            raise StructureError(
                f"a {name} that is in itself",
                at=format_path(path, name),
                fix="a record is a tree: hold a copy, a key or an index in its place",
            )


def _way_back(record: eqx.Module, value: Any, path: Path, done: set[int]) -> Path | None:
    if value is record:
        return path
    if type(value) in _ENDS or is_array(value) or isinstance(value, eqx.Module) or id(value) in done:
        return None
    if len(done) < _MOST:
        done.add(id(value))
        for part, child in _children(value):
            found = _way_back(record, child, (*path, part), done)
            if found is not None:
                return found
    return None


def _children(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value).items()
    if isinstance(value, list | tuple | set | frozenset):
        return enumerate(cast("list[Any]", value))
    return () if callable(value) or isinstance(value, ModuleType) else getattr(value, "__dict__", {}).items()
