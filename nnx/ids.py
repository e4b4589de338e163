"""`uuid()`: makes identifiers that are unique in this process; a copy of one is a new identifier."""

from __future__ import annotations

import itertools
from typing import Any


class UUID:
    """A unique identifier. A copy is a new identifier.

    >>> import copy
    >>> first = uuid()
    >>> first == first, first == uuid(), first == copy.deepcopy(first)
    (True, False, False)
    """

    __slots__ = ("id",)

    def __init__(self, id: int):
        self.id = id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UUID) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"UUID({self.id})"

    def __copy__(self) -> UUID:
        return uuid()

    def __deepcopy__(self, memo: Any) -> UUID:
        return uuid()


class UUIDManager:
    """A callable that returns new identifiers, from any thread."""

    def __init__(self) -> None:
        # `next` on it is atomic, so no lock is needed.
        self._next = itertools.count(1)

    def __call__(self) -> UUID:
        return UUID(next(self._next))


uuid = UUIDManager()
