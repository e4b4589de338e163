"""What weft keeps from one call to the next: one list of tables, each with what it is found by and how much it holds.

Two things must not happen to a process that runs for days. A table must not grow with the calls that are made: each has
a bound. And a table must not keep alive what a user has let go of, above all arrays: what is found by a function is
known weakly (`memory`), and what is found by a class, an annotation or a text holds no arrays. A test makes and drops
models, functions and classes by the thousand, and counts what is left.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, MutableMapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

# As many as JAX keeps traces of one function.
MOST_KEPT = 4096


@dataclass(frozen=True)
class Table:
    """A table: its name, what its entries are found by, how many it holds at most, how to look and how to empty it."""

    name: str
    key: str
    most: int | None
    size: Callable[[], int]
    clear: Callable[[], None]


_tables: dict[str, Table] = {}


def tables() -> list[Table]:
    """The tables of all modules that are loaded."""
    return [_tables[name] for name in sorted(_tables)]


def register(table: Table) -> None:
    """Adds a table to the list."""
    _tables[table.name] = table


def kept(key: str, most: int = MOST_KEPT, *, typed: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keeps what a function of hashable arguments returned, the last `most` of them.

    Args:
        key: what the arguments are, in words: `"class"`, `"annotation"`.
        most: how many are kept.
        typed: whether 1 and True are two things.

    >>> @kept("number", most=2)
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
    """Keeps what a function returned of a class for as long as the class lives.

    For what cannot be found out again, so that `clear_caches` leaves it: annotations that are texts may name the locals
    of a function, and can be read only while that runs.
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
    """Registers a mapping that a module fills by itself; what is in it now is what clearing it goes back to.

    Args:
        name: the module and the name in it.
        key: what its entries are found by, in words.
        table: the mapping, with one entry for each key that is alive.
    """
    first: dict[Hashable, Any] = dict(table)

    def clear() -> None:
        table.clear()
        table.update(first)

    register(Table(name, key, None, lambda: len(table), clear))


def clear_caches() -> None:
    """Empties all that weft keeps: plans, generated code, what is known of classes and annotations.

    Nothing changes but speed: the next call of each function is traced anew. JAX keeps its own: `jax.clear_caches()`.

    >>> clear_caches()
    """
    for table in tables():
        table.clear()
