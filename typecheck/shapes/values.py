"""Values of a trace without their arrays: dtypes, shapes, and the classes of records.

Sizes are stored as the trace had them; `sizes` puts them into the names of dims.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from weft.typecheck.language.forms import form_of_value
from weft.typecheck.matching.words import short_dtype
from weft.typecheck.sizes.dim import Dim

# How many items of a container are shown, and to which depth; a longer comment would not fit on a line.
_MOST = 4
_DEEPEST = 3


@dataclass(frozen=True)
class Shaped:
    """An array or a box with one: `f32[b,d]`, `Param f32[b,d]`."""

    words: str
    dims: tuple[Any, ...]


@dataclass(frozen=True)
class Size:
    """A number that is a size in the trace, such as `x.shape[0]`."""

    dim: Any


@dataclass(frozen=True)
class Group:
    """A container: its brackets, a label for each item, and the items; `more` says that further items are left out."""

    brackets: str
    labels: tuple[str, ...]
    items: tuple[Value, ...]
    more: bool


@dataclass(frozen=True)
class Named:
    """A record, shown by its class; or any other value, shown as one word."""

    name: str


Value = Shaped | Size | Group | Named


# Only dtypes and shapes are kept: a stored tracer would keep its trace and all of its arrays alive.
def value_of(value: Any, depth: int = 0) -> Value | None:
    """The part of a value to show; None if there is nothing to show."""
    if type(value) is Dim:
        return Size(value)
    if isinstance(value, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
        return Shaped(short_dtype(value.dtype), tuple(value.shape))
    if isinstance(value, type):
        return None
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return Named(type(value).__name__)
    if isinstance(value, dict) and type(value).__module__ in ("builtins", "collections"):
        return _group("{}", value.values(), [f"{key}: " for key in value], depth)
    if isinstance(value, tuple | list):
        return _group("()" if isinstance(value, tuple) else "[]", value, [""] * len(value), depth)
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:  # a Variable, a Ref
        return Shaped(f"{type(value).__name__} {short_dtype(dtype)}", shape)
    is_record = form_of_value(value) is not None or dataclasses.is_dataclass(value)
    return Named(type(value).__name__) if is_record else None


def _group(brackets: str, values: Any, labels: Sequence[str], depth: int) -> Value | None:
    """A container with the values of its first items; None if none of them is worth showing."""
    if depth >= _DEEPEST:
        return None
    values = list(values)
    shown = [value_of(value, depth + 1) for value in values[:_MOST]]
    # A container of strings or flags has no shapes, and would only fill the line.
    if not any(item is not None for item in shown):
        return None
    items = tuple(
        Named(repr(value) if isinstance(value, int | float | str | None) else "_") if item is None else item
        for value, item in zip(values, shown, strict=False)
    )
    return Group(brackets, tuple(labels[:_MOST]), items, len(values) > _MOST)


def in_text(values: Sequence[Value], shown: Callable[[tuple[tuple[Any, ...], ...]], str]) -> str:
    """The text that shows a value, from its form in each of several traces.

    Args:
        values: one value for each trace, all of one structure.
        shown: writes a shape as text, from its axes in each trace.
    """
    first = values[0]
    match first:
        case Shaped(words):
            return f"{words}[{shown(tuple(value.dims for value in values if isinstance(value, Shaped)))}]"
        case Size():
            return shown(tuple((value.dim,) for value in values if isinstance(value, Size)))
        case Group(brackets, labels, items, more):
            columns = zip(*(value.items for value in values if isinstance(value, Group)), strict=True)
            told = [label + in_text(column, shown) for label, column in zip(labels, columns, strict=True)]
            if more:
                told.append("…")
            elif brackets == "()" and len(items) == 1:
                told.append("")  # for the comma of a tuple of one item
            return brackets[0] + ", ".join(told).rstrip(" ") + brackets[1]
        case Named(name):
            return name


def alike(a: Value, b: Value) -> bool:
    """Whether two values differ in their sizes only."""
    match a, b:
        case Shaped(), Shaped():
            return a.words == b.words and len(a.dims) == len(b.dims)
        case Group(), Group():
            same = (a.brackets, a.labels, a.more) == (b.brackets, b.labels, b.more)
            return same and all(map(alike, a.items, b.items))
        case Size(), Size():
            return True
        case _:
            return a == b
