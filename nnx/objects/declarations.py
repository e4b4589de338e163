"""Declarations: attributes that a class body declares as data or static."""

from __future__ import annotations

import dataclasses
import inspect
import typing
import warnings
from typing import Any

from weft.nnx.errors import AttributeKindError
from weft.nnx.objects.attributes import DATA_ANNOTATION, STATIC_ANNOTATION


def declared_attributes(cls: type) -> dict[str, bool]:
    """Reads the attributes that a class declares: `nnx.data()`, `nnx.static()`, and deprecated `nnx.Data` hints."""
    # A class has the declarations of its bases, too.
    nodes: dict[str, bool] = dict(getattr(cls, "_pytree__class_nodes", {}))
    try:
        hints = typing.get_type_hints(cls, {**globals()}, {cls.__name__: cls}, include_extras=True)
    except Exception:
        # Python evaluates hints that are texts, and these may raise anything. A hint may name a class that is defined
        # later in the user's module, for instance, which is no error. The hints are then read as they are.
        hints = inspect.get_annotations(cls)
    for name, hint in hints.items():
        marks = getattr(hint, "__metadata__", ())
        text = hint if isinstance(hint, str) else ""
        if DATA_ANNOTATION in marks or text.startswith("nnx.Data"):
            nodes[name] = True
        elif STATIC_ANNOTATION in marks or text.startswith("nnx.Static"):
            nodes[name] = False
        else:
            continue
        word = "data" if nodes[name] else "static"
        warnings.warn(
            f"'{word.capitalize()}' annotations are deprecated: write {name}: SomeType = nnx.{word}()",
            DeprecationWarning,
            stacklevel=4,
        )
    for name, field in list(cls.__dict__.items()):
        if isinstance(field, dataclasses.Field) and "static" in field.metadata:
            _declare_field(cls, name, field, nodes)
    return nodes


def _declare_field(cls: type, name: str, field: Any, nodes: dict[str, bool]) -> None:
    mark = field.metadata["static"]
    where = f"{cls.__name__}.{name}"
    if not isinstance(mark, bool):
        raise AttributeKindError(
            f"the 'static' metadata of a field must be a bool, got {type(mark).__name__}", at=where
        )
    if nodes.get(name, not mark) == mark:
        words = ("static", "data") if mark else ("data", "static")
        raise AttributeKindError(
            f"declared as {words[0]} here, but as {words[1]} in a base class or annotation",
            at=where,
            fix="declare it once",
        )
    nodes[name] = not mark
