"""Tracebacks of weft's own errors, cut to the user's frames.

The frames of weft, JAX and equinox between the user's function and the failing check say nothing about the mistake.
They are unlinked as the error passes through a checked call; `WEFT_TYPECHECK_VERBOSE=1` keeps them. Frames further out
hold `__tracebackhide__` for pytest and IPython, and the hook that prints uncaught errors drops them.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TypeVar

from weft.core.callers import is_users
from weft.core.errors import WeftError
from weft.typecheck.modes import verbose

E = TypeVar("E", bound=BaseException)


def cut(error: E) -> E:
    """The same error, with a traceback of the user's frames only; all of it if it was raised in a library's code."""
    if not verbose():
        error.__traceback__ = users_frames(error.__traceback__)
    return error


def users_frames(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of libraries."""
    kept: list[TracebackType] = []
    while traceback is not None:
        if is_users(traceback.tb_frame):
            kept.append(traceback)
        traceback = traceback.tb_next
    result: TracebackType | None = None
    for one in reversed(kept):
        result = TracebackType(result, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return result


def install_excepthook() -> None:
    """Makes an uncaught error of weft's print the user's frames only; others print as before. Once is enough."""
    if sys.excepthook is _print_cut:
        return
    global _previous
    _previous, sys.excepthook = sys.excepthook, _print_cut


_previous = sys.__excepthook__


def _print_cut(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if isinstance(error, WeftError) and not verbose():
        traceback = users_frames(traceback) or traceback
        error = error.with_traceback(traceback)
        # JAX notes on errors that pass through it that it has cut its own frames.
        error.__notes__ = [note for note in getattr(error, "__notes__", ()) if "JAX_TRACEBACK_FILTERING" not in note]
    _previous(kind, error, traceback)
