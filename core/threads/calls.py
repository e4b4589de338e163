"""What `debug_successors` is told by running programs: calls of public methods, places of records, intended drops.

A record does not know where it lies. Its name is its path from the nearest running call whose record it is a part of.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator, Iterable
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from weft.core.edge import trees
from weft.core.edge.contexts import insight_context, marking
from weft.core.paths import Path, format_path
from weft.core.records.successors import records_in

V = TypeVar("V")
# Everything inside of an object, with its path.
Parts = Callable[[Any], Iterable[tuple[Path, object]]]


class ByIdentity(Generic[V]):
    """A weak dictionary for keys that cannot be hashed (records, tracers): it compares them by identity."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[object], V]] = {}

    def get(self, key: object) -> V | None:
        entry = self._known.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def put(self, key: object, value: V) -> None:
        place, known = id(key), self._known

        def forget(reference: object) -> None:
            if known.get(place, (None,))[0] is reference:
                del known[place]

        known[place] = (weakref.ref(key, forget), value)


# The records whose public methods are running, with their names.
_calls: ContextVar[tuple[tuple[object, str], ...]] = ContextVar("weft_running_calls", default=())
# Where records belong: the name of a root, and a path from it.
_places = ByIdentity[tuple[str, Path]]()


def running_calls() -> tuple[tuple[object, str], ...]:
    """The records whose public methods are running, with their names; the outermost call is the first."""
    return _calls.get()


@contextlib.contextmanager
def calling(record: object, parts: Parts = records_in, name: str | None = None) -> Generator[str]:
    """Opens a `with` block in which a public method of a record runs; gives the record's name.

    Args:
        record: the record, or an object of another layer.
        parts: gives the records in a record, with their paths.
        name: the record's name; by default its path from the nearest running call.
    """
    name = _name_of(record, parts) if name is None else name
    token = _calls.set((*_calls.get(), (record, name)))
    try:
        yield name
    finally:
        _calls.reset(token)


def note_place(record: object, root: str, path: Path) -> None:
    """Notes where a record belongs, for errors: a rebuilt record cannot be found in its owner by identity."""
    if marking() or insight_context.value:
        _places.put(record, (root, path))


def note_successor(record: object, successor: object, name: str) -> None:
    """Notes that a successor belongs where its record does, or, if that is unknown, under the record's name."""
    _places.put(successor, _places.get(record) or (name, ()))


def _name_of(record: object, parts: Parts) -> str:
    root, path = _places.get(record) or (None, ())
    for owner, name in reversed(_calls.get()):
        inside = [path_in_owner for path_in_owner, part in parts(owner) if part is record]
        if not inside and root is None:
            # A transform has rebuilt it: it is the only part of its structure, or nobody knows which of them it is.
            inside = [path_in_owner for path_in_owner, part in parts(owner) if _is_alike(part, record)]
            inside = inside if len(inside) == 1 else []
        if inside:
            return format_path(inside[0], name) if inside[0] else name
        if root == type(owner).__qualname__:
            return format_path(path, name)
    return format_path(path, root or type(record).__qualname__)


def _is_alike(part: object, record: object) -> bool:
    return type(part) is type(record) and trees.structure(part) == trees.structure(record)


T = TypeVar("T")
# What is told of drops. `lost` adds its function when it is imported, which is before anything is marked.
drop_watchers: list[Callable[[Any], None]] = []


def drop_successor(successor: T) -> T:
    """Declares that a successor is lost on purpose, so that `debug_successors` does not report it. Returns it
    unchanged.

    Args:
        successor: a record, or a tree of records; also a call's whole return value.

    >>> import jax, weft
    >>> @weft.jit
    ... def noise(keys):
    ...     key, keys = keys.next()
    ...     drop_successor(keys)
    ...     return jax.random.normal(key)
    >>> with weft.debug.debug_successors():
    ...     noise(weft.Keys(0)).shape
    ()
    """
    if marking():
        for note in drop_watchers:
            note(successor)
    return successor
