"""Tracebacks of weft's own errors, cut to the user's frames.

The frames of weft, JAX and equinox between the user's function and the failing check say nothing about the mistake.
They are unlinked as the error passes through a checked or a transformed call; `WEFT_TYPECHECK_VERBOSE=1` keeps them.
What is left of the libraries is the way to the outermost call, a frame or two, and `__tracebackhide__` hides those from
pytest and IPython. The process's own hook for uncaught errors stays what it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from types import TracebackType
from typing import TypeVar

from weft.core.callers import is_users
from weft.core.switches import is_on

E = TypeVar("E", bound=BaseException)

VERBOSE = "WEFT_TYPECHECK_VERBOSE"

_whole: ContextVar[bool] = ContextVar("weft_whole_tracebacks", default=False)


@contextlib.contextmanager
def whole_tracebacks() -> Generator[None]:
    """Keeps all frames, for who looks where an error was raised."""
    token = _whole.set(True)
    try:
        yield
    finally:
        _whole.reset(token)


def cut(error: E) -> E:
    """The same error, with a traceback of the user's frames only, and without JAX's note that it cut its own."""
    if not _whole.get() and not is_on(VERBOSE):
        error.__traceback__ = users_frames(error.__traceback__)
        if notes := getattr(error, "__notes__", None):
            notes[:] = [note for note in notes if "JAX_TRACEBACK_FILTERING" not in note]
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
