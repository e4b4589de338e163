"""Which call an array was given away in, for the error about its use afterwards.

A buffer that was donated is gone, and the array that held it knows no more. So each plan that donates knows the first
and the last of the arrays that it was given last: who uses a tree afterwards mostly has one of the two in hand. All of
them would cost each call more than it may.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any


class Donation:
    """The last arrays that were donated to a function, by calls of one make."""

    def __init__(self, function: str, lanes: Sequence[int]):
        self.place = f"donated in a call of {function}"
        self._first, self._last = lanes[0], lanes[-1]
        # Weakly, for what JAX could not use of them has its buffer still.
        self.ends: tuple[weakref.ref[Any], ...] = ()
        _donations.add(self)

    def note(self, groups: Sequence[Sequence[Any]]) -> None:
        """Notes that what is in these lanes has gone."""
        try:
            self.ends = weakref.ref(groups[self._first][0]), weakref.ref(groups[self._last][-1])
        except (TypeError, IndexError):  # numbers, or nothing
            self.ends = ()


# Weakly: they are their plans', and go with them.
_donations: weakref.WeakSet[Donation] = weakref.WeakSet()


def donors_of(arrays: Iterable[Any]) -> list[str]:
    """The calls that gave these arrays away, as far as it is known."""
    wanted = set(map(id, arrays))
    return [one.place for one in list(_donations) if any(id(end()) in wanted for end in one.ends)]
