"""`weft.filters`: predicates over leaves, in one small language; `help(weft.filters.Filter)` explains it.

`sorting` sorts leaves by several filters.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import TYPE_CHECKING, cast
from typing import Any as AnyValue

from weft.core.errors import FilterError
from weft.core.paths import Path, format_path, parse_path
from weft.core.records.kinds import Kind
from weft.core.records.leaves import Leaf

__all__ = ["All", "Any", "Filter", "Inside", "InstanceOf", "Maybe", "Not", "PathContains", "WithTag"]


def __dir__() -> list[str]:
    return __all__


Predicate = Callable[[Leaf], bool]
UserPredicate = Callable[[Path, type[Kind], AnyValue], bool]


@dataclass(frozen=True)
class PathContains:
    """Leaves whose path contains a part: `PathContains("decoder")`.

    With `exact=False` a string part may also contain it as a substring.

    >>> import jax
    >>> from weft import MLP
    >>> from weft.tree import select
    >>> model = MLP(2, 3, 4, key=jax.random.key(0))
    >>> [leaf.shape for leaf in jax.tree.leaves(select(model, PathContains("bias")))]
    [(3,), (4,)]
    """

    key: Hashable
    exact: bool = True

    # `weft.nnx` has this class, too, and flax asks its filters with a path and a value.
    def __call__(self, leaf: Leaf | Path, value: object = None, /) -> bool:
        place = leaf if isinstance(leaf, tuple) else leaf.place
        if self.exact:
            return self.key in place
        return builtins.any(str(self.key) in str(part) for part in place)

    def __repr__(self) -> str:
        return f"PathContains({self.key!r}, exact={self.exact})"


class InstanceOf:
    """Leaves that lie inside a record of a class, at any depth: `InstanceOf(Linear)`.

    Args:
        classes: one class of records, or several, of which any will do.

    Raises:
        FilterError: if an argument is no class.

    >>> import jax, jax.numpy as jnp
    >>> from weft import Linear
    >>> from weft.tree import select
    >>> model = [Linear(2, 3, key=jax.random.key(0)), jnp.ones(4)]
    >>> [leaf.shape for leaf in jax.tree.leaves(select(model, InstanceOf(Linear)))]
    [(2, 3), (3,)]
    """

    def __init__(self, *classes: type):
        if not classes or not all(isinstance(cast(AnyValue, cls), type) for cls in classes):
            raise FilterError(f"InstanceOf takes classes, not {classes!r}", fix="write InstanceOf(Linear)")
        self.classes = classes

    def __call__(self, leaf: Leaf) -> bool:
        return builtins.any(issubclass(owner, self.classes) for owner in leaf.owners)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InstanceOf) and self.classes == other.classes

    def __hash__(self) -> int:
        return hash((InstanceOf, self.classes))

    def __repr__(self) -> str:
        return f"InstanceOf({', '.join(cls.__name__ for cls in self.classes)})"


class Inside:
    """Leaves at a path or below it: `Inside("encoder", "layers", 0)`, or `Inside("encoder.layers[0]")`.

    The path begins at the tree that is filtered; in a transform, at the argument.

    Args:
        parts: field names, keys and indices. A string is read like a path in an error message, so that dots and
            brackets separate parts; a key that contains dots or brackets is quoted: `Inside("['a.b']")`.

    Raises:
        FilterError: if a text cannot be read.

    >>> import jax.numpy as jnp
    >>> from weft.tree import select
    >>> select({"a": {"b": jnp.arange(1), "c": jnp.arange(2)}}, Inside("a.c"))
    {'a': {'b': None, 'c': Array([0, 1], dtype=int32)}}
    """

    def __init__(self, *parts: Hashable):
        path: list[Hashable] = []
        for part in parts:
            path += _parts_of(part)
        if not path:
            raise FilterError("Inside takes a path, and this one is empty", fix='write Inside("encoder"), or `...`')
        self.path = tuple(path)

    def __call__(self, leaf: Leaf) -> bool:
        return leaf.place[: len(self.path)] == self.path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Inside) and self.path == other.path

    def __hash__(self) -> int:
        return hash((Inside, self.path))

    def __repr__(self) -> str:
        return f"Inside({format_path(self.path)!r})"


def _parts_of(part: Hashable) -> Path:
    # Without dots and brackets a string is one key, even one such as "a b", which a path would have to quote.
    if not isinstance(part, str) or not builtins.any(mark in part for mark in ".[]"):
        return (part,)
    try:
        return parse_path(part)
    except ValueError:
        raise FilterError(
            f"cannot be read as a path: {part!r}",
            fix="""write Inside("encoder.layers[0]"), and a key with dots or brackets in quotes: Inside("['a.b']")""",
        ) from None


@dataclass(frozen=True)
class WithTag:
    """Leaves whose field carries a tag: `WithTag("slow")` means those of `rate: Annotated[Array, "slow"]`."""

    tag: str

    # As `PathContains`; the tag of a Variable or a stream of `weft.nnx` is its attribute.
    def __call__(self, leaf: Leaf | Path, value: object = None, /) -> bool:
        return getattr(value, "tag", None) == self.tag if isinstance(leaf, tuple) else self.tag in leaf.tags

    def __repr__(self) -> str:
        return f"WithTag({self.tag!r})"


@dataclass(frozen=True)
class OfKind:
    """Leaves of a kind or of one of its subclasses; a bare kind as a filter means this."""

    kind: type

    def __call__(self, leaf: Leaf) -> bool:
        return issubclass(leaf.kind, self.kind)


@dataclass(frozen=True)
class OfValue:
    """Leaves whose value passes a test of its shape and dtype."""

    test: Callable[[AnyValue], bool]

    def __call__(self, leaf: Leaf) -> bool:
        return self.test(leaf.value)


class Any:
    """Leaves that any of the filters matches.

    The combinators pass their own arguments on to their filters: a leaf here, a path and a value in `weft.nnx`.

    Raises:
        FilterError: if an argument is no filter.

    >>> import jax
    >>> from weft import MLP
    >>> from weft.tree import select
    >>> model = MLP(2, 3, 4, key=jax.random.key(0))
    >>> [leaf.shape for leaf in jax.tree.leaves(select(model, Any(PathContains(0), PathContains("bias"))))]
    [(2, 3), (3,), (4,)]
    """

    @staticmethod
    def _read(filter: Filter) -> Callable[..., bool]:
        return predicate(filter)

    def __init__(self, *filters: Filter):
        self.filters = filters
        self._predicates = tuple(map(self._read, filters))

    def __call__(self, *asked: AnyValue) -> bool:
        return builtins.any(test(*asked) for test in self._predicates)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.filters == cast(Any, other).filters

    def __hash__(self) -> int:
        return hash((type(self), self.filters))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(format_filter, self.filters))})"


class All(Any):
    """Leaves that all of the filters match.

    Raises:
        FilterError: if an argument is no filter.

    >>> import jax
    >>> from weft import MLP
    >>> from weft.tree import select
    >>> model = MLP(2, 3, 4, key=jax.random.key(0))
    >>> [leaf.shape for leaf in jax.tree.leaves(select(model, All(PathContains(0), PathContains("bias"))))]
    [(3,)]
    """

    def __call__(self, *asked: AnyValue) -> bool:
        return builtins.all(test(*asked) for test in self._predicates)


class Not(Any):
    """Leaves that the filter does not match.

    Raises:
        FilterError: if the argument is no filter.

    >>> import jax
    >>> from weft import MLP
    >>> from weft.tree import select
    >>> model = MLP(2, 3, 4, key=jax.random.key(0))
    >>> [leaf.shape for leaf in jax.tree.leaves(select(model, Not(PathContains("bias"))))]
    [(2, 3), (3, 4)]
    """

    def __init__(self, filter: Filter, /):
        super().__init__(filter)

    def __call__(self, *asked: AnyValue) -> bool:
        return not self._predicates[0](*asked)


class Maybe(Any):
    """Leaves that the filter matches, of which there may be none: `Maybe(BatchStat)`, for models with and without
    norms.

    Any other filter that matches no leaf is an error.

    Raises:
        FilterError: if the argument is no filter.

    >>> import jax
    >>> from weft import BatchStat, MLP
    >>> from weft.tree import select
    >>> model = MLP(2, 3, 4, key=jax.random.key(0))
    >>> [leaf.shape for leaf in jax.tree.leaves(select(model, Maybe(BatchStat)))]
    []
    """

    def __init__(self, filter: Filter, /):
        super().__init__(filter)


@dataclass(frozen=True, init=False)
class Everything:
    """All leaves: the filters `...` and `True` mean this.

    >>> Everything()("whatever"), Everything() == Everything(), Everything() == Nothing()
    (True, True, False)
    """

    def __call__(self, *asked: AnyValue) -> bool:
        return True


@dataclass(frozen=True, init=False)
class Nothing:
    """No leaf: the filters `None` and `False` mean this.

    >>> Nothing()("whatever")
    False
    """

    def __call__(self, *asked: AnyValue) -> bool:
        return False


class Structural:
    """The base of filters of other packages that ask for no more of a leaf than its path, kind, shape and dtype."""


# The classes of filters; types, strings, constants, containers and functions are filters too.
Native = PathContains | WithTag | OfKind | OfValue | InstanceOf | Inside | Any | Everything | Nothing

if TYPE_CHECKING:
    Filter = (
        type
        | PathContains
        | WithTag
        | OfKind
        | OfValue
        | InstanceOf
        | Inside
        | Any
        | str
        | bool
        | None
        | EllipsisType
        | UserPredicate
        | Sequence["Filter"]
    )

else:

    class _Language(type):
        def __instancecheck__(cls, value: object) -> bool:
            return _is_filter(value)

    # A class at run time, and a union for type checkers: `help` of a union shows no text, and the contract of a field
    # `wrt: Filter` calls `isinstance`.
    class Filter(metaclass=_Language):
        """Selects leaves of a tree, by kind, class, path, tag or predicate. A filter is one of these:

        | filter | matches |
        |---|---|
        | a kind: `Param`, `BatchStat`, ... | leaves of that kind or a subclass of it |
        | `InstanceOf(Linear)` | leaves inside a record of that class, at any depth |
        | `Inside("encoder.layers[0]")` | leaves at that path of the tree, or below it |
        | `PathContains("bias")` | leaves with that part anywhere in their path |
        | `WithTag("frozen")`, or `"frozen"` | leaves whose field has that tag: `Annotated[Array, Buffer, "frozen"]` |
        | `Any(a, b)`, or `[a, b]`, `(a, b)` | leaves that any of the filters matches |
        | `All(a, b)` | leaves that all of the filters match |
        | `Not(a)` | leaves that the filter does not match |
        | `Maybe(a)` | leaves that `a` matches; there may be none |
        | `...` or `True` | everything; as the last of several, the rest |
        | `None` or `False` | nothing |
        | a callable | leaves for which `f(path, kind, leaf)` is true |

        Paths begin at the tree that is filtered: in a transform at the argument, whatever the parameter is called.

        Of several filters the first that matches a leaf takes it. A filter that matches no leaf at all is an error
        that lists the leaves, unless it is `...`, `None`, a bool or a `Maybe`.

        Filters go wherever leaves are chosen: `select(model, Param)`, `split(model, Param, ...)`,
        `grad(loss, wrt=All(Param, Inside("head")))`, `vmap(f, in_axes=axes({BatchStat: None, ...: 0}))`,
        `Optimizer(model, transformation, wrt=LoRAParam)`, `at(model, InstanceOf(Dropout))`, and in `weft.tree`.

        >>> import jax.numpy as jnp
        >>> from weft.tree import select
        >>> model = {"scale": jnp.ones(3), "steps": jnp.zeros(3, int)}
        >>> select(model, All(Param, Not(PathContains("bias"))))
        {'scale': Array([1., 1., 1.], dtype=float32), 'steps': None}
        >>> isinstance(Maybe(BatchStat), Filter), isinstance(3, Filter)
        (True, False)
        """

    def _is_filter(value: object) -> bool:
        if isinstance(value, (list, tuple)):
            return builtins.all(map(_is_filter, value))
        return value is None or value is ... or isinstance(value, Native | type | str | bool) or callable(value)


def predicate(filter: Filter) -> Predicate:
    """Turns a filter into a predicate over leaves.

    Raises:
        FilterError: if it is no filter.
    """
    if isinstance(filter, Native):
        return filter
    if filter is ... or filter is True:
        return Everything()
    if filter is None or filter is False:
        return Nothing()
    if isinstance(filter, type):
        return OfKind(filter)
    if isinstance(filter, str):
        return WithTag(filter)
    if isinstance(filter, (list, tuple)):
        return Any(*cast("Sequence[Filter]", filter))
    if callable(filter):
        user = filter
        return lambda leaf: bool(user(leaf.place, leaf.kind, leaf.value))
    raise FilterError(
        f"not a filter: {filter!r}",
        fix="use a kind, InstanceOf, Inside, PathContains, WithTag, Any, All, Not, Maybe, `...`, a bool, a string (a "
        "tag) or a callable (path, kind, leaf) -> bool; see help(weft.filters.Filter)",
    )


def may_match_none(filter: Filter) -> bool:
    """Whether a filter may match no leaf: `...` and bools stand for the rest or for nothing, and `Maybe` says so.

    >>> may_match_none(Maybe(Param)), may_match_none([Maybe(Param), ...]), may_match_none(All(Param, Maybe("frozen")))
    (True, True, True)
    >>> may_match_none(Param), may_match_none(Any(Param, Maybe("frozen")))
    (False, False)
    """
    if isinstance(filter, (list, tuple)):
        filter = Any(*cast("Sequence[Filter]", filter))
    if isinstance(filter, All):
        return builtins.any(map(may_match_none, filter.filters))
    if isinstance(filter, Any):
        return isinstance(filter, Maybe) or (type(filter) is Any and builtins.all(map(may_match_none, filter.filters)))
    return filter is ... or filter is None or isinstance(filter, (bool, Everything, Nothing))


def reads_values(filter: Filter) -> bool:
    """Whether a filter may ask for more of a leaf than its path, kind, shape and dtype, as a function may.

    >>> reads_values([Param, All("frozen", Inside("head"))]), reads_values(Not(lambda path, kind, value: value > 0))
    (False, True)
    """
    if isinstance(filter, Any):
        return builtins.any(map(reads_values, filter.filters))
    if isinstance(filter, (list, tuple)):
        return builtins.any(map(reads_values, cast("Sequence[Filter]", filter)))
    return filter is not None and filter is not ... and not isinstance(filter, Native | Structural | type | str | bool)


def format_filter(filter: Filter) -> str:
    """A filter as the user would write it."""
    if filter is ...:
        return "..."
    return filter.__name__ if isinstance(filter, type) else repr(filter)
