"""Identities that count up: `uuid()` gives one that no other equals, in this process, nor any copy of it."""

from __future__ import annotations

import itertools
from typing import Any


class UUID:
    """An identity: equal to itself alone. A copy is another one.

    >>> import copy
    >>> one = uuid()
    >>> one == one, one == uuid(), one == copy.deepcopy(one)
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
    """Calls of it give new identities, whichever thread they come from."""

    def __init__(self) -> None:
        self._next = itertools.count(1)

    def __call__(self) -> UUID:
        return UUID(next(self._next))


uuid = UUIDManager()
