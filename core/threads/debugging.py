"""What is said to `debug_successors`, which loads when somebody debugs: by programs, and by weft itself."""

from __future__ import annotations

from typing import TypeVar

from weft.core.contexts import insight_context, marking
from weft.core.edge.trees import PyTree
from weft.core.paths import Path

T = TypeVar("T")


def drop_successor(successor: T) -> T:
    """Says that a successor is lost on purpose: `debug_successors` lets it pass. It is given back as it is.

    Args:
        successor: a record, or any tree of them; what a call returned as a whole, too.

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
    """Says where a record belongs, for errors: it may have been rebuilt, and not be found in its owner by identity."""
    if marking() or insight_context.value:
        from weft.core.threads import calls

        calls.note_place(record, root, path)
