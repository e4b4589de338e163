"""The list of weft's caches, each with a name, a description of its key, and its size.

A process that runs for days must not run out of memory. So no cache grows with the number of calls: each has a bound.
And no cache keeps alive what the user has dropped, above all arrays: caches by function hold the function weakly
(`memory`), and caches by class, annotation or string hold no arrays. A test creates and drops models, functions and
classes by the thousand, and counts the entries that are left.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, MutableMapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

# The same number as JAX's own caches of traces.
MOST_KEPT = 4096


@dataclass(frozen=True)
class Table:
    """A cache: its name, its key in words, the most entries that it holds (None: no bound), its size, and how to clear
    it."""

    name: str
    key: str
    most: int | None
    size: Callable[[], int]
    clear: Callable[[], None]


_tables: dict[str, Table] = {}


def tables() -> list[Table]:
    """The caches of all modules that are loaded."""
    return [_tables[name] for name in sorted(_tables)]


def register(table: Table) -> None:
    """Adds a cache to the list."""
    _tables[table.name] = table


def cached_by(key: str, most: int = MOST_KEPT, *, typed: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function of hashable arguments with a cache of its results, which is listed here.

    Args:
        key: the arguments, in words: `"class"`, `"annotation"`.
        most: the most results that the cache holds; those that were used last stay.
        typed: whether 1 and True are different arguments.

    >>> @cached_by("number", most=2)
    ... def square(x: int) -> int:
    ...     return x * x
    >>> [square(x) for x in (1, 2, 3)], [table.size() for table in tables() if table.name.endswith("square")]
    ([1, 4, 9], [2])
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        cached = functools.lru_cache(maxsize=most, typed=typed)(function)
        name = f"{function.__module__}.{function.__qualname__}"
        register(Table(name, key, most, lambda: cached.cache_info().currsize, cached.cache_clear))
        return cast("Callable[P, R]", cached)

    return decorate


def kept_with_class(function: Callable[[type[Any]], R]) -> Callable[[type[Any]], R]:
    """Decorates a function of a class with a cache that holds each result as long as the class lives.

    `clear_caches` does not clear it, because some results cannot be computed again: a string annotation may name the
    locals of a function, and can be resolved only while that function runs.
    """
    known: weakref.WeakKeyDictionary[type[Any], R] = weakref.WeakKeyDictionary()

    @functools.wraps(function)
    def look(cls: type[Any]) -> R:
        try:
            return known[cls]
        except KeyError:
            return known.setdefault(cls, function(cls))

    return look


def kept_in(name: str, key: str, table: MutableMapping[Any, Any]) -> None:
    """Lists a mapping that a module fills by itself; to clear it restores its present entries.

    Args:
        name: the module and the name in it.
        key: the mapping's keys, in words.
        table: the mapping, with one entry for each key that is alive.
    """
    first: dict[Hashable, Any] = dict(table)

    def clear() -> None:
        table.clear()
        table.update(first)

    register(Table(name, key, None, lambda: len(table), clear))


def clear_caches() -> None:
    """Clears weft's caches: plans, generated code, and facts about classes and annotations.

    Only speed changes: the next call of each function is traced again. JAX has its own caches: `jax.clear_caches()`.

    >>> clear_caches()
    """
    for table in tables():
        table.clear()
