"""Refuses a record that contains itself, which JAX could not flatten.

A frozen record can be put into itself while its constructor runs, or through a mutable value: a list, a dict, an object
in a static field. JAX's flattening of such a tree ended in a RecursionError that named no field.
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

# Types whose values hold no other values, which are most.
_ENDS = {str, bytes, bool, int, float, complex, type(None), type}
# The search ends after this many objects: an object that leads to more belongs to the program, not to a model.
_MOST = 1_000


def refuse_cycles(record: eqx.Module, values: dict[str, Any]) -> None:
    """Refuses a record that its fields lead back to. Inner records are not searched: they were when they were made.

    Raises:
        StructureError: with the path back to it.
    """
    done: set[int] = set()
    for field, value in values.items():
        path = _way_back(record, opened(value), (field,), done)
        if path is not None:
            name = type(record).__qualname__
            raise StructureError(
                f"a {name} contains itself",
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
            path_back = _way_back(record, child, (*path, part), done)
            if path_back is not None:
                return path_back
    return None


def _children(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value).items()
    if isinstance(value, list | tuple | set | frozenset):
        return enumerate(cast("list[Any]", value))
    return () if callable(value) or isinstance(value, ModuleType) else getattr(value, "__dict__", {}).items()
