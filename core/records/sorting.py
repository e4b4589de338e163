"""Sorting leaves by filters: the first filter that matches a leaf takes it.

A filter that matches no leaf is mostly misspelt, and an error. Only `...`, a bool, None and a `Maybe` may match none.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import cast

from weft.core.errors import FilterError
from weft.core.paths import format_path
from weft.core.records.filters import Any, Filter, PathContains, WithTag, format_filter, may_match_none, predicate
from weft.core.records.leaves import Leaf


def sort_leaves(
    leaves: Sequence[Leaf], filters: Sequence[Filter], *, require_all: bool = True, require_used: bool = True
) -> list[int | None]:
    """The index of the first filter that matches each leaf.

    Args:
        leaves: the leaves to sort.
        filters: tried in order.
        require_all: whether a leaf that no filter matches is an error; otherwise its index is `None`.
        require_used: whether a filter that matches no leaf is an error.

    Raises:
        FilterError: naming the paths that no filter matches, or the filters that match no leaf.
    """
    # First: a filter after `...` matches nothing, but the error must be about the order.
    _check_order(filters)
    tests = [predicate(filter) for filter in filters]
    places = [next((i for i, test in enumerate(tests) if test(leaf)), None) for leaf in leaves]
    unmatched = [leaf for leaf, place in zip(leaves, places, strict=True) if place is None]
    if require_all and unmatched:
        raise FilterError(
            "no filter matches these leaves",
            at=[f"{format_path(leaf.path)}: {leaf.kind.__name__}" for leaf in unmatched],
            fix="add a filter for them, or end with `...` for the rest",
        )
    # Tested on all leaves: a filter whose leaves an earlier filter has taken is not misspelt.
    idle = [filters[i] for i, test in enumerate(tests) if not builtins.any(map(test, leaves))]
    idle = [filter for filter in idle if not may_match_none(filter)]
    if idle and require_used:
        kinds = sorted({leaf.kind.__name__ for leaf in leaves})
        raise FilterError(
            f"these filters match no leaf: {', '.join(map(format_filter, idle))}",
            at=[f"{format_path(leaf.path)}: {leaf.kind.__name__}" for leaf in leaves[:20]],
            fix=f"{probably_meant(idle, leaves)}drop them, correct them, or mark what may be absent: "
            f"Maybe({format_filter(idle[0])}); the kinds here are {', '.join(kinds) or 'none'}",
        )
    return places


def probably_meant(filters: Sequence[Filter], leaves: Sequence[Leaf]) -> str:
    """The start of a fix for filters that match nothing, if they are a class of records or a path in the tree.

    >>> from weft.core.records.leaves import iter_leaves
    >>> probably_meant(["head"], list(iter_leaves({"head": {"kernel": 1.0}})))
    'a string is a tag: for what is there by that name write Inside("head"); '
    """
    for filter in filters:
        if isinstance(filter, type) and builtins.any(filter in leaf.owners for leaf in leaves):
            return f"write InstanceOf({filter.__name__}) for the leaves inside such records; "
        if isinstance(filter, (list, tuple, Any)):
            parts = filter.filters if isinstance(filter, Any) else cast("Sequence[Filter]", filter)
            if meant := probably_meant(parts, leaves):
                return meant
        text = cast(object, filter.tag if isinstance(filter, WithTag) else filter)
        if isinstance(text, str):
            starts = {format_path(leaf.place[:n]) for leaf in leaves for n in range(len(leaf.place) + 1)}
            written = "Inside" if text in starts else "PathContains"
            if text in starts or builtins.any(map(PathContains(text), leaves)):
                return f'a string is a tag: for what is there by that name write {written}("{text}"); '
    return ""


def _check_order(filters: Sequence[Filter]) -> None:
    for i, filter in enumerate(filters[:-1]):
        if filter is ... or filter is True:
            rest = ", ".join(map(format_filter, filters[i + 1 :]))
            raise FilterError(f"`...` matches everything, so nothing is left for {rest}", fix="put `...` last")
