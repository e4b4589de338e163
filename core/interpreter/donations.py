"""Remembers in which call an array was donated, for the error about a later use of the array.

A donated array is deleted, and JAX does not say by which call. So each plan that donates remembers the first and the
last array that its last call donated: whoever uses a donated tree again mostly passes one of the two. To remember all
arrays would cost each call more than the text of an error is worth.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any


class Donation:
    """The arrays that the last call of a plan donated."""

    def __init__(self, function: str, lanes: Sequence[int]):
        self.place = f"donated in a call of {function}"
        self._first, self._last = lanes[0], lanes[-1]
        # Weak references: JAX leaves an array alone that it could not use, and that must not live longer for an error.
        self.ends: tuple[weakref.ref[Any], ...] = ()
        _donations.add(self)

    def note(self, groups: Sequence[Sequence[Any]]) -> None:
        """Notes that a call has donated the arrays of its donated lanes."""
        try:
            self.ends = weakref.ref(groups[self._first][0]), weakref.ref(groups[self._last][-1])
        except (TypeError, IndexError):  # a Python number has no weak reference, and a lane may be empty
            self.ends = ()


# Weak, so that a donation is forgotten with its plan.
_donations: weakref.WeakSet[Donation] = weakref.WeakSet()


def donors_of(arrays: Iterable[Any]) -> list[str]:
    """The calls that donated these arrays, as far as it is known."""
    wanted = set(map(id, arrays))
    return [donation.place for donation in list(_donations) if any(id(end()) in wanted for end in donation.ends)]
