"""The rows of the table of shardings: each array of a tree with its place on the mesh and its bytes."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding
from weft.core.paths import format_path
from weft.core.records.leaves import NUMBERS, iter_leaves
from weft.modules.summary.texts import as_text

PLACE_HEADS = ["path", "array", "lies", "bytes", "bytes a device"]


def rows_of_places(tree: Any) -> tuple[list[list[str]], list[str]]:
    """Returns a row for each array of a tree, and the row of totals."""
    leaves = [leaf for leaf in iter_leaves(tree, ("model",)) if leaf.dynamic and type(leaf.value) not in NUMBERS]
    sizes = [(_bytes(leaf.value), _bytes_on_a_device(leaf.value)) for leaf in leaves]
    rows = [
        [format_path(leaf.path), as_text(leaf.value), _where(leaf.value), *map(_short, both)]
        for leaf, both in zip(leaves, sizes, strict=True)
    ]
    totals = [_short(sum(column)) for column in zip(*sizes, strict=True)] or ["", ""]
    return rows, ["total", "", "", *totals]


def _bytes(value: Any) -> int:
    return math.prod(np.shape(value)) * value.dtype.itemsize


def _sharding(value: Any) -> Any:
    return jax.typeof(value).sharding if isinstance(value, Tracer) else getattr(value, "sharding", None)


def _bytes_on_a_device(value: Any) -> int:
    sharding = _sharding(value)
    if sharding is None:
        return _bytes(value)
    return math.prod(sharding.shard_shape(tuple(np.shape(value)))) * value.dtype.itemsize


def _where(value: Any) -> str:
    sharding = _sharding(value)
    if sharding is None:
        return "nowhere: a shape" if isinstance(value, jax.ShapeDtypeStruct) else "one device"
    if len(sharding.device_set) == 1 if not isinstance(value, Tracer) else False:
        return "one device"
    # Told apart from one device: a replicated array takes its bytes on each of them.
    if sharding.is_fully_replicated:
        return "every device, whole"
    if isinstance(sharding, NamedSharding):
        entries = (_entry(sharding, entry) for entry in sharding.spec)
        return f"({', '.join(entries)})"
    return str(sharding)


def _entry(sharding: NamedSharding, entry: Any) -> str:
    axes = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
    parts = math.prod(sharding.mesh.shape[axis] for axis in axes)
    return f"{entry!r} / {parts}" if axes else "None"


def _short(number: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if number > scale:
            return f"{number / scale:,.1f} {unit}"
    return f"{number:,} B"
