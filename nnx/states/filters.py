"""NNX's filters: predicates over (path, value).

The language is that of `weft.core.records.filters`: types, tags, `...`, booleans, None, callables, and lists of those.
NNX calls a filter with a path and the Variable or object there, and the core calls it with a leaf. `FilteredLeaf`
presents a path and a value as a leaf, so the core's filters, such as `weft.filters.Inside`, work here too.
"""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any as AnyValue
from typing import Protocol, cast

from weft.core.paths import Path
from weft.core.records import filters as core_filters
from weft.core.records.filters import Everything as Everything
from weft.core.records.filters import Nothing as Nothing
from weft.core.records.filters import PathContains as PathContains
from weft.core.records.filters import WithTag as WithTag
from weft.nnx.errors import FilterError

Predicate = Callable[[Path, AnyValue], bool]
Filter = type | str | Predicate | bool | EllipsisType | None | core_filters.Native | Sequence["Filter"]


class InvalidFilterError(FilterError, TypeError):
    """Raised for a value that is no filter."""


@dataclasses.dataclass(frozen=True, slots=True)
class FilteredLeaf:
    """A path and a value with the attributes that the core's filters read of a leaf."""

    place: Path
    value: AnyValue

    @property
    def kind(self) -> type:
        # A hijax Variable inside a trace is a tracer: only `var_type` names its class.
        return getattr(self.value, "var_type", type(self.value))

    @property
    def tags(self) -> tuple[AnyValue, ...]:
        return (getattr(self.value, "tag", None),)

    @property
    def owners(self) -> tuple[type, ...]:
        raise InvalidFilterError(
            "InstanceOf selects by the records around a leaf, which a State does not know",
            fix="use PathContains, weft.filters.Inside, or a callable (path, value) -> bool",
        )


class HasTag(Protocol):
    """A value with a tag, which `WithTag` can match."""

    tag: str


class PathIn(core_filters.Structural):
    """Matches these paths."""

    def __init__(self, *paths: Path):
        self.paths = frozenset(paths)

    def __call__(self, path: Path, x: AnyValue) -> bool:
        return path in self.paths

    def __repr__(self) -> str:
        return f"PathIn({','.join(map(repr, self.paths))})"

    def __eq__(self, other: object) -> bool:
        # By content, because filters are keys of dicts, and a user writes an equal filter at each use.
        return isinstance(other, PathIn) and self.paths == other.paths

    def __hash__(self) -> int:
        return hash(self.paths)


@dataclasses.dataclass(frozen=True)
class OfType(core_filters.Structural):
    """Matches instances of a type. A type used as a filter means this.

    >>> from weft import nnx
    >>> list(nnx.state(nnx.Dict(w=nnx.Param(1.0), n=nnx.BatchStat(2.0)), nnx.OfType(nnx.Param)))
    ['w']
    """

    type: type

    def __call__(self, path: Path, x: AnyValue) -> bool:
        return isinstance(x, self.type)  # not `type(x)`: tracers and hijax boxes claim to be instances

    def __repr__(self) -> str:
        return f"OfType({self.type!r})"


class _OfPaths:
    """Mixin for a combinator of the core: reads its filters as NNX predicates when it is created."""

    # `__init__` makes the predicates. The core's `_read` would make functions of a leaf of a record instead.
    _read = staticmethod(lambda predicate: predicate)

    def __init__(self, *filters: Filter):
        super().__init__(*map(to_predicate, filters))

    @property
    def predicates(self) -> tuple[Predicate, ...]:
        return self.filters  # pyright: ignore[reportAttributeAccessIssue]  (of the core's class)


class Any(_OfPaths, core_filters.Any):
    """Matches what any of the filters matches.

    Raises:
        TypeError: for a value that is no filter.

    >>> from weft import nnx
    >>> model = nnx.Dict(a=nnx.Param(1.0), b=nnx.BatchStat(2.0), c=nnx.Cache(3.0))
    >>> list(nnx.state(model, nnx.Any(nnx.Param, nnx.PathContains("c"))))
    ['a', 'c']
    """


class All(_OfPaths, core_filters.All):
    """Matches what all of the filters match.

    Raises:
        TypeError: for a value that is no filter.

    >>> from weft import nnx
    >>> model = nnx.Dict(a=nnx.Param(1.0), b=nnx.Param(2.0), c=nnx.Cache(3.0))
    >>> list(nnx.state(model, nnx.All(nnx.Param, nnx.PathContains("b"))))
    ['b']
    """


class Not(_OfPaths, core_filters.Not):
    """Matches what the filter does not match.

    Raises:
        TypeError: for a value that is no filter.

    >>> from weft import nnx
    >>> list(nnx.state(nnx.Dict(w=nnx.Param(1.0), n=nnx.BatchStat(2.0)), nnx.Not(nnx.Param)))
    ['n']
    """

    @property
    def predicate(self) -> Predicate:
        return self.predicates[0]


# Of the core's filters, those that take a path and a value as they are.
_OF_PATHS = (PathContains, WithTag, _OfPaths, Everything, Nothing)


def to_predicate(filter: Filter) -> Predicate:
    """Converts a filter to a predicate over (path, value).

    Raises:
        TypeError: if it is no filter.

    >>> to_predicate("dropout"), to_predicate(...)
    (WithTag('dropout'), Everything())
    """
    match filter:
        case str():
            return WithTag(filter)
        case type():
            return OfType(filter)
        case bool():
            return Everything() if filter else Nothing()
        case None:
            return Nothing()
        case list() | tuple():
            return Any(*filter)
    if filter is ...:
        return Everything()
    # A filter of the core is called with a leaf. NNX's own subclasses of core filters take (path, value) already.
    if isinstance(filter, core_filters.Native) and not isinstance(filter, _OF_PATHS):
        of_leaves: AnyValue = filter
        return lambda path, x: of_leaves(FilteredLeaf(path, x))
    if callable(filter):
        return cast("Predicate", filter)
    raise InvalidFilterError(
        f"Invalid filter: {filter!r}",
        fix="use a type, a string (a tag), `...`, a bool, None, a callable (path, value) -> bool, or a list of those",
    )


def _matches_rest(filter: Filter) -> bool:
    return filter is ... or filter is True


def filters_to_predicates(filters: Sequence[Filter]) -> tuple[Predicate, ...]:
    """Converts filters that are tried in order to predicates.

    Raises:
        ValueError: if `...` or `True` comes before another filter, which could then match nothing.
    """
    for i, filter in enumerate(filters):
        # A filter after `...` could match nothing, and its State would be empty without a word.
        if _matches_rest(filter) and not builtins.all(map(_matches_rest, filters[i + 1 :])):
            raise FilterError(
                f"`...` or `True` can only be used as the last filters, got {filter} at index {i}",
                fix="put it last: it matches everything",
            )
    return tuple(map(to_predicate, filters))
