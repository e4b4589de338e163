"""Calls without an end: a function of the user's that calls itself again and again with arguments of the same shapes.

In a trace shapes are nearly all that a call depends on, so such a recursion only ends at Python's limit, a thousand
calls deep, and each of them may trace a whole model: one trial would take longer than all others of a search.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable
from types import FrameType
from typing import Any

import jax

# Calls of one function, each inside the one before it and alike, after which there is no end in sight. A recursion
# that counts in an object of its own may be one of them; its contract is undecided then, which is no accusation.
_ALIKE = 24


class Endless(RecursionError):
    """A function has called itself with like arguments so often that no end is in sight."""


class Depths:
    """Looks at the calls of a function from one place once they are many.

    To look at each of them would take longer than the trial.
    """

    def __init__(self) -> None:
        self._calls: collections.Counter[Hashable] = collections.Counter()

    def called(self, site: Hashable, frame: FrameType) -> None:
        """Takes note of a call.

        Raises:
            Endless: if it is one of many alike, each inside of the one before.
        """
        self._calls[site] += 1
        if self._calls[site] % _ALIKE == 0 and _is_endless(frame):
            name = frame.f_code.co_name
            raise Endless(f"{name} calls itself without an end, with arguments of the same shapes each time")


def _is_endless(frame: FrameType) -> bool:
    """Whether all the innermost calls of a function that are open now were given the like."""
    code, given, count = frame.f_code, _given(frame), 0
    outer: FrameType | None = frame
    while outer is not None and count < _ALIKE:
        if outer.f_code is code:
            if _given(outer) != given:
                return False
            count += 1
        outer = outer.f_back
    return count == _ALIKE


def _given(frame: FrameType) -> Any:
    """What a call was given, as far as a trace depends on it: structures, shapes, dtypes, and what is no array."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    leaves, structure = jax.tree.flatten([frame.f_locals.get(name) for name in names])
    return structure, [_of_leaf(leaf) for leaf in leaves]


def _of_leaf(leaf: Any) -> Hashable:
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return tuple(leaf.shape), str(leaf.dtype)
    return leaf if isinstance(leaf, bool | int | float | str) else id(leaf)
