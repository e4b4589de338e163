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
def value_of(given: Any, depth: int = 0) -> Value | None:
    """The part of a value to show; None if there is nothing to show."""
    if type(given) is Dim:
        return Size(given)
    if isinstance(given, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
        return Shaped(short_dtype(given.dtype), tuple(given.shape))
    if isinstance(given, type):
        return None
    if isinstance(given, tuple) and hasattr(given, "_fields"):
        return Named(type(given).__name__)
    if isinstance(given, dict) and type(given).__module__ in ("builtins", "collections"):
        return _group("{}", given.values(), [f"{key}: " for key in given], depth)
    if isinstance(given, tuple | list):
        return _group("()" if isinstance(given, tuple) else "[]", given, [""] * len(given), depth)
    shape, dtype = getattr(given, "shape", None), getattr(given, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:  # a Variable, a Ref
        return Shaped(f"{type(given).__name__} {short_dtype(dtype)}", shape)
    is_record = form_of_value(given) is not None or dataclasses.is_dataclass(given)
    return Named(type(given).__name__) if is_record else None


def _group(brackets: str, values: Any, labels: Sequence[str], depth: int) -> Value | None:
    if depth >= _DEEPEST:
        return None
    values = list(values)
    found = [value_of(one, depth + 1) for one in values[:_MOST]]
    # A container of strings or flags has no shapes, and would only fill the line.
    if not any(isinstance(one, Shaped | Size | Group | Named) for one in found):
        return None
    items = tuple(
        Named(repr(given) if isinstance(given, int | float | str | None) else "_") if one is None else one
        for given, one in zip(values, found, strict=False)
    )
    return Group(brackets, tuple(labels[:_MOST]), items, len(values) > _MOST)


def in_text(values: Sequence[Value], shown: Callable[[tuple[tuple[Any, ...], ...]], str]) -> str:
    """A value in words, from its form in each of several traces.

    Args:
        values: one value for each trace, all of one structure.
        shown: puts a shape into words, from its axes in each trace.
    """
    first = values[0]
    match first:
        case Shaped(words):
            return f"{words}[{shown(tuple(one.dims for one in values if isinstance(one, Shaped)))}]"
        case Size():
            return shown(tuple((one.dim,) for one in values if isinstance(one, Size)))
        case Group(brackets, labels, items, more):
            columns = zip(*(one.items for one in values if isinstance(one, Group)), strict=True)
            told = [label + in_text(column, shown) for label, column in zip(labels, columns, strict=True)]
            told += ["…"] if more else ["", ""][: 1 * (brackets == "()" and len(items) == 1)]
            return brackets[0] + ", ".join(told).rstrip(" ") + brackets[1]
        case Named(name):
            return name


def alike(one: Value, other: Value) -> bool:
    """Whether two values differ in their sizes only."""
    match one, other:
        case Shaped(), Shaped():
            return one.words == other.words and len(one.dims) == len(other.dims)
        case Group(), Group():
            return (one.brackets, one.labels, one.more) == (other.brackets, other.labels, other.more) and all(
                map(alike, one.items, other.items)
            )
        case Size(), Size():
            return True
        case _:
            return one == other
