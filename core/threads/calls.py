"""Which public methods of records are running, and what their records are called, while somebody debugs.

A record knows nothing of where it is. Its name is its path from the nearest running call whose record it is a part of.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator, Iterable
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from weft.core.edge import trees
from weft.core.paths import Path, format_path
from weft.core.records.successors import records_in

V = TypeVar("V")
# Everything inside of an object, with its path.
Parts = Callable[[Any], Iterable[tuple[Path, object]]]


class ByIdentity(Generic[V]):
    """What is known of objects that cannot be hashed, for as long as they live."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[object], V]] = {}

    def get(self, key: object) -> V | None:
        found = self._known.get(id(key))
        return found[1] if found is not None and found[0]() is key else None

    def put(self, key: object, value: V) -> None:
        place, known = id(key), self._known

        def forget(reference: object) -> None:
            if known.get(place, (None,))[0] is reference:
                del known[place]

        known[place] = (weakref.ref(key, forget), value)


# The public methods that are running: of which records, and what these are called.
_calls: ContextVar[tuple[tuple[object, str], ...]] = ContextVar("weft_running_calls", default=())
# Where records that were met on the way belong: the name of a root, and a path.
_places = ByIdentity[tuple[str, Path]]()


def running_calls() -> tuple[tuple[object, str], ...]:
    """The records whose public methods are running, with their names; the outermost is the first."""
    return _calls.get()


@contextlib.contextmanager
def calling(record: object, parts: Parts = records_in) -> Generator[str]:
    """A `with` block in which a public method of a record runs; gives the record's name.

    Args:
        record: the record, or an object of another layer.
        parts: what is inside of one, with paths.
    """
    name = _name_of(record, parts)
    token = _calls.set((*_calls.get(), (record, name)))
    try:
        yield name
    finally:
        _calls.reset(token)


def note_place(record: object, root: str, path: Path) -> None:
    """Says where a record belongs, for errors: it may have been rebuilt, and not be found in its owner by identity."""
    _places.put(record, (root, path))


def note_successor(record: object, successor: object, name: str) -> None:
    """Says that a record is the successor of another one, which has a name."""
    _places.put(successor, _places.get(record) or (name, ()))


def _name_of(record: object, parts: Parts) -> str:
    root, path = _places.get(record) or (None, ())
    for owner, name in reversed(_calls.get()):
        inside = [found for found, part in parts(owner) if part is record]
        if not inside and root is None:
            # A transform has rebuilt it: it is the only part of its structure, or nobody knows which of them it is.
            inside = [found for found, part in parts(owner) if _is_alike(part, record)]
            inside = inside if len(inside) == 1 else []
        if inside:
            return format_path(inside[0], name)
        if root == type(owner).__qualname__:
            return format_path(path, name)
    return format_path(path, root or type(record).__qualname__)


def _is_alike(part: object, record: object) -> bool:
    return type(part) is type(record) and trees.structure(part) == trees.structure(record)
