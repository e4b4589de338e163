"""The rows of the table of shardings: each array of a tree with its place on the mesh and its bytes."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, NamedSharding
from weft.core.logical_axes import rules_in_force
from weft.core.paths import Path, format_path
from weft.core.records.leaves import NUMBERS, iter_leaves
from weft.modules.summary.texts import as_text

PLACE_HEADS = ["path", "array", "lies", "bytes", "bytes a device"]


def rows_of_places(tree: Any) -> tuple[list[list[str]], list[str]]:
    """Returns a row for each array of a tree, and the row of totals."""
    leaves = [leaf for leaf in iter_leaves(tree, ("model",)) if leaf.dynamic and type(leaf.value) not in NUMBERS]
    lies = {leaf.path: _sharding(leaf.value) for leaf in leaves}
    if (rules := rules_in_force()) is not None:
        # What nobody has placed is shown as the rules of the block would place it.
        by_rules: dict[Path, Any] = {("model", *leaf.path): leaf.value for leaf in iter_leaves(rules.shardings(tree))}
        lies = {path: by_rules[path] if where is None else where for path, where in lies.items()}
    sizes = [(_bytes(leaf.value), _bytes_on_a_device(leaf.value, lies[leaf.path])) for leaf in leaves]
    rows = [
        [format_path(leaf.path), as_text(leaf.value), _where(leaf.value, lies[leaf.path]), *map(_short, both)]
        for leaf, both in zip(leaves, sizes, strict=True)
    ]
    totals = [_short(sum(column)) for column in zip(*sizes, strict=True)] or ["", ""]
    return rows, ["total", "", "", *totals]


def _bytes(value: Any) -> int:
    return math.prod(np.shape(value)) * value.dtype.itemsize


def _sharding(value: Any) -> Any:
    """The sharding of an array; None for an abstract one, and for one that lies where it was made by chance."""
    if isinstance(value, Tracer):
        return jax.typeof(value).sharding
    return getattr(value, "sharding", None) if getattr(value, "committed", True) else None


def _bytes_on_a_device(value: Any, sharding: Any) -> int:
    if sharding is None:
        return _bytes(value)
    return math.prod(sharding.shard_shape(tuple(np.shape(value)))) * value.dtype.itemsize


def _where(value: Any, sharding: Any) -> str:
    if sharding is None:
        return "nowhere: a shape" if isinstance(value, jax.ShapeDtypeStruct) else "one device"
    if (
        not (isinstance(value, Tracer) or isinstance(getattr(sharding, "mesh", None), AbstractMesh))
        and len(sharding.device_set) == 1
    ):
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
