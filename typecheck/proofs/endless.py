"""Recursion without an end: a user's function that calls itself again and again with arguments of the same shapes.

In a trace shapes are nearly all that a call depends on, so such a recursion only ends at Python's limit, a thousand
calls deep, and each of them may trace a whole model: one trial would take longer than all others of a search.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable
from types import FrameType
from typing import Any

import jax

# The depth of nested calls of one function with like arguments after which the recursion counts as endless. A recursion
# that counts in an object of its own may come to an end after all; so its contract is undecided, and does not fail.
_ALIKE = 24


class Endless(RecursionError):
    """A function has called itself with like arguments so often that no end is in sight."""


class Depths:
    """Counts the calls of each function from each place, and compares their arguments once they are many.

    Comparing the arguments of every call would take longer than the trial.
    """

    def __init__(self) -> None:
        self._calls: collections.Counter[Hashable] = collections.Counter()

    def called(self, site: Hashable, frame: FrameType) -> None:
        """Counts a call.

        Raises:
            Endless: if the call is the innermost of many nested calls with like arguments.
        """
        self._calls[site] += 1
        if self._calls[site] % _ALIKE == 0 and _is_endless(frame):
            name = frame.f_code.co_name
            raise Endless(f"{name} calls itself without an end, with arguments of the same shapes each time")


def _is_endless(frame: FrameType) -> bool:
    """Whether the innermost open calls of a function, as many as `_ALIKE`, all have like arguments."""
    code, arguments, count = frame.f_code, _arguments_of(frame), 0
    outer: FrameType | None = frame
    while outer is not None and count < _ALIKE:
        if outer.f_code is code:
            if _arguments_of(outer) != arguments:
                return False
            count += 1
        outer = outer.f_back
    return count == _ALIKE


def _arguments_of(frame: FrameType) -> Any:
    """A call's arguments, as far as a trace depends on them: treedefs, shapes, dtypes, and all leaves but arrays."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    leaves, structure = jax.tree.flatten([frame.f_locals.get(name) for name in names])
    return structure, [_of_leaf(leaf) for leaf in leaves]


def _of_leaf(leaf: Any) -> Hashable:
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return tuple(leaf.shape), str(leaf.dtype)
    return leaf if isinstance(leaf, bool | int | float | str) else id(leaf)
