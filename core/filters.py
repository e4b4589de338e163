"""Filters: predicates over (path, kind, leaf), in one small language.

| filter | matches |
|---|---|
| a kind, e.g. `Param` | leaves of that kind or a subclass of it |
| `PathContains(part)` | leaves with that part in their path |
| `WithTag(tag)`, or the string alone | leaves whose field is tagged: `Annotated[Array, Buffer, "frozen"]` |
| `Any(*filters)`, or a list or tuple | leaves that any of them matches |
| `All(*filters)` | leaves that all of them match |
| `Not(filter)` | leaves that it does not match |
| `...` or `True` | everything |
| `None` or `False` | nothing |
| a callable | leaves for which `f(path, kind, leaf)` is true |
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any as AnyValue
from typing import cast

from weft.core.errors import FilterError
from weft.core.kinds import Kind
from weft.core.leaves import Leaf
from weft.core.paths import Path, format_path

Predicate = Callable[[Leaf], bool]
UserPredicate = Callable[[Path, type[Kind], AnyValue], bool]


@dataclass(frozen=True)
class PathContains:
    """Leaves whose path contains a part: `PathContains("decoder")`.

    With `exact=False` a string part may also contain it as a substring.
    """

    part: Hashable
    exact: bool = True

    def __call__(self, leaf: Leaf) -> bool:
        if self.exact:
            return self.part in leaf.path
        return builtins.any(str(self.part) in str(part) for part in leaf.path)


@dataclass(frozen=True)
class WithTag:
    """Leaves whose field carries a tag."""

    tag: str

    def __call__(self, leaf: Leaf) -> bool:
        return self.tag in leaf.tags


@dataclass(frozen=True)
class OfKind:
    """Leaves of a kind or of one of its subclasses; what a bare kind means."""

    kind: type

    def __call__(self, leaf: Leaf) -> bool:
        return issubclass(leaf.kind, self.kind)


@dataclass(frozen=True)
class OfValue:
    """Leaves whose value passes a test, whatever holds it."""

    test: Callable[[AnyValue], bool]

    def __call__(self, leaf: Leaf) -> bool:
        return self.test(leaf.value)


class Any:
    """Leaves that any of the filters matches."""

    def __init__(self, *filters: Filter):
        self.filters = filters
        self._predicates = tuple(map(predicate, filters))

    def __call__(self, leaf: Leaf) -> bool:
        return builtins.any(test(leaf) for test in self._predicates)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.filters == cast(Any, other).filters

    def __hash__(self) -> int:
        return hash((type(self), self.filters))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(format_filter, self.filters))})"


class All(Any):
    """Leaves that all of the filters match."""

    def __call__(self, leaf: Leaf) -> bool:
        return builtins.all(test(leaf) for test in self._predicates)


class Not(Any):
    """Leaves that the filter does not match."""

    def __init__(self, filter: Filter, /):
        super().__init__(filter)

    def __call__(self, leaf: Leaf) -> bool:
        return not self._predicates[0](leaf)


class _Everything:
    def __call__(self, leaf: Leaf) -> bool:
        return True


class _Nothing:
    def __call__(self, leaf: Leaf) -> bool:
        return False


EVERYTHING, NOTHING = _Everything(), _Nothing()
_NATIVE = (PathContains, WithTag, OfKind, OfValue, Any, _Everything, _Nothing)

Filter = (
    type
    | PathContains
    | WithTag
    | OfKind
    | OfValue
    | Any
    | str
    | bool
    | None
    | EllipsisType
    | UserPredicate
    | Sequence["Filter"]
)


def predicate(filter: Filter) -> Predicate:
    """Reads a filter of the language above as one predicate over leaves.

    Raises:
        FilterError: if it is none of them.
    """
    if isinstance(filter, _NATIVE):
        return filter
    if filter is ... or filter is True:
        return EVERYTHING
    if filter is None or filter is False:
        return NOTHING
    if isinstance(filter, type):
        return OfKind(filter)
    if isinstance(filter, str):
        return WithTag(filter)
    if isinstance(filter, (list, tuple)):
        return Any(*cast("Sequence[Filter]", filter))
    if callable(filter):
        user = filter
        return lambda leaf: bool(user(leaf.path, leaf.kind, leaf.value))
    raise FilterError(
        f"not a filter: {filter!r}",
        fix="use a kind, PathContains, WithTag, Any, All, Not, `...`, a bool, a string (a tag) or a callable "
        "(path, kind, leaf) -> bool",
    )


def matches_by_rest(filter: Filter) -> bool:
    """Whether a filter stands for "the rest" or "nothing", and so may match no leaf without that being a slip."""
    return filter is ... or filter is None or isinstance(filter, (bool, _Everything, _Nothing))


def sort_leaves(
    leaves: Sequence[Leaf], filters: Sequence[Filter], *, require_all: bool = True, require_used: bool = True
) -> list[int | None]:
    """The index of the first filter that matches each leaf.

    Args:
        leaves: what to sort.
        filters: tried in order.
        require_all: whether a leaf that no filter matches is an error; otherwise its index is `None`.
        require_used: whether a filter that matches no leaf is an error.

    Raises:
        FilterError: naming the paths that no filter matches, or the filters that match no leaf.
    """
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
    idle = [filters[i] for i, test in enumerate(tests) if not builtins.any(map(test, leaves))]
    idle = [filter for filter in idle if not matches_by_rest(filter)]
    if idle and require_used:
        kinds = sorted({leaf.kind.__name__ for leaf in leaves})
        raise FilterError(
            f"these filters match no leaf: {', '.join(map(format_filter, idle))}",
            at=[f"{format_path(leaf.path)}: {leaf.kind.__name__}" for leaf in leaves[:20]],
            fix=f"drop them, or correct them; the kinds here are {', '.join(kinds) or 'none'}",
        )
    return places


def _check_order(filters: Sequence[Filter]) -> None:
    for i, filter in enumerate(filters[:-1]):
        if filter is ... or filter is True:
            rest = ", ".join(map(format_filter, filters[i + 1 :]))
            raise FilterError(f"`...` matches everything, so nothing is left for {rest}", fix="put `...` last")


def format_filter(filter: Filter) -> str:
    """A filter as it would be written."""
    if filter is ...:
        return "..."
    return filter.__name__ if isinstance(filter, type) else repr(filter)
