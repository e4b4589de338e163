"""Selects arrays by a filter for `weft.tree`, and finds the arrays of another tree at the same paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from weft.core.errors import StructureError
from weft.core.paths import Path, format_path
from weft.core.records.filters import Filter, Maybe
from weft.core.records.kinds import FrozenParam, Param
from weft.core.records.leaves import Leaf, iter_leaves
from weft.core.records.sorting import sort_leaves

PARAMETERS = Maybe(Param)
# The arrays that have a precision to choose: parameters, frozen ones too, and arrays outside of records. Statistics and
# caches keep their dtype: in bfloat16, small updates of a running mean would be rounded away.
PRECISE = Maybe((Param, FrozenParam))


def chosen(tree: Any, filter: Filter) -> list[Leaf]:  # weft: skip(of any tree)
    """Returns the arrays of a tree that a filter matches."""
    leaves = [leaf for leaf in iter_leaves(tree) if leaf.dynamic]
    # A filter that matches nothing is an error in `sort_leaves`: a misspelt path would train or cast nothing, silently.
    places = sort_leaves(leaves, [filter], require_all=False)
    return [leaf for leaf, place in zip(leaves, places, strict=True) if place is not None]


def arrays_at(  # weft: skip(of any tree)
    tree: Any, leaves: Sequence[Leaf], name: str
) -> dict[Path, Any]:
    """Returns the arrays of a tree by path; refuses a tree that lacks one of `leaves`, or has another shape there."""
    arrays = {leaf.path: leaf.value for leaf in iter_leaves(tree) if leaf.dynamic}
    # All misfits are listed: trees of two models differ in more than one place.
    wrong = [f"{format_path(leaf.path)}: nothing there" for leaf in leaves if leaf.path not in arrays]
    wrong += [
        f"{format_path(leaf.path)}: {np.shape(arrays[leaf.path])}, not {np.shape(leaf.value)}"
        for leaf in leaves
        if leaf.path in arrays and np.shape(arrays[leaf.path]) != np.shape(leaf.value)
    ]
    if wrong:
        raise StructureError(f"{name} does not fit", at=wrong, fix="pass trees of the same model")
    return arrays
