"""Short texts for values in messages: `f32[8,5]` for an array."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from weft.core.records.successors import pair_in_words

_BITS = re.compile(r"(float|int|uint|complex)(\d+)$")


def dtype_name(dtype: Any) -> str:
    """A dtype's name as jaxtyping knows it: `float32`, `prng_key`."""
    if isinstance(dtype, type):  # arrays of other libraries may have a class as their dtype
        return dtype.__name__
    name = getattr(getattr(dtype, "type", None), "__name__", None)
    if name is None:
        return str(dtype).rpartition(".")[2]
    return str(dtype) if name == "void" and dtype != np.dtype(np.void) else name


def short_dtype(dtype: Any) -> str:
    """A dtype's short name: `f32`, `bf16`, `i32`.

    >>> import numpy as np
    >>> short_dtype(np.dtype("float32")), short_dtype(np.dtype("uint8"))
    ('f32', 'u8')
    """
    name = dtype_name(dtype)
    if name == "bfloat16":
        return "bf16"
    if name == "prng_key":
        return str(dtype)
    parts = _BITS.match(name)
    return f"{parts[1][0]}{parts[2]}" if parts else name


def in_words(value: Any) -> str:
    """A value in a few words: arrays by dtype and shape, short tuples and lists by their items, the rest by type.

    >>> in_words((np.zeros((2, 3), "float32"), 4, "sum"))
    "(numpy f32[2,3], int 4, str 'sum')"
    """
    if _is_shaped(value):
        return f"{_whose(value)}{short_dtype(value.dtype)}[{axes_in_words(value.shape)}]"
    if value is None:
        return "None"
    if pair := pair_in_words(value):
        return pair
    if type(value) in (tuple, list) and len(value) <= 4 and any(map(_is_shaped, value)):
        text = ", ".join(map(in_words, value))
        return f"[{text}]" if isinstance(value, list) else f"({text}{',' * (len(value) == 1)})"
    text = repr(value) if isinstance(value, bool | int | float | complex | str) else ""
    return f"{type(value).__name__} {text[:40]}".rstrip()


def _whose(value: Any) -> str:
    """The library of an array that is not JAX's, for messages: that may be the whole mistake."""
    root = type(value).__module__.partition(".")[0]
    return "" if root in ("jax", "jaxlib", "weft") else f"{root if root == 'numpy' else type(value).__name__} "


def _is_shaped(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def axes_in_words(shape: Any) -> str:
    """Axes as they are written between brackets: `8,5`."""
    return ",".join(map(str, shape))
