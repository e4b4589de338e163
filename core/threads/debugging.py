"""`drop` and `note_place`, which tell `debug_successors` something. They load it only while somebody debugs."""

from __future__ import annotations

from typing import TypeVar

from weft.core.edge.contexts import insight_context, marking
from weft.core.edge.trees import PyTree
from weft.core.paths import Path

T = TypeVar("T")


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
        from weft.core.threads.lost import note_drop

        note_drop(successor)
    return successor


def note_place(record: PyTree, root: str, path: Path) -> None:
    """Notes where a record belongs, for errors: a rebuilt record cannot be found in its owner by identity."""
    if marking() or insight_context.value:
        from weft.core.threads import calls

        calls.note_place(record, root, path)
