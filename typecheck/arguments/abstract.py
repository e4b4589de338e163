"""Calling without computing: what a call gives for abstract arrays, abstractly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from weft.core.records.leaves import is_array
from weft.typecheck.language.objects import closed, opened


def abstractly(function: Callable[[Any], Any], given: Any) -> Any:
    """Calls a function without computing: abstract arrays in, and in its result every array abstract."""
    leaves, treedef = jax.tree.flatten(opened(given))
    dynamic = [isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves]
    found: list[Any] = []

    def run(arrays: list[Any]) -> list[Any]:
        source = iter(arrays)
        live = [next(source) if traced else leaf for leaf, traced in zip(leaves, dynamic, strict=True)]
        out, structure = jax.tree.flatten(opened(function(closed(treedef.unflatten(live)))))
        found[:] = [structure, [None if is_array(leaf) else leaf for leaf in out], [is_array(leaf) for leaf in out]]
        return [leaf for leaf in out if is_array(leaf)]

    shapes = iter(jax.eval_shape(run, [leaf for leaf, traced in zip(leaves, dynamic, strict=True) if traced]))
    structure, static, arrays = found
    live = [next(shapes) if traced else leaf for leaf, traced in zip(static, arrays, strict=True)]
    return closed(structure.unflatten(live))
