"""Tracebacks, cut to the user's frames.

The frames of weft, JAX and equinox between the user's functions say nothing about a mistake, and there are ten of them
to each of the user's. They are unlinked as an error passes through a method or a transformed call. Of weft's own errors
only the user's frames stay; an error of anybody else's keeps its end too, from the user's last frame on, because where
it was raised may be all that it says; of what an error was raised from, the user's frames and the last stay.
`WEFT_TYPECHECK_VERBOSE=1` keeps all frames, as does JAX's switch, `JAX_TRACEBACK_FILTERING=off`. What is left of the
libraries is the way to the outermost call, a frame or two, and `__tracebackhide__` hides those from pytest and IPython.
The process's own hook for uncaught errors stays what it is.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from contextvars import ContextVar
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

import jax
from weft.core.callers import is_machinery, is_users
from weft.core.errors import WeftError
from weft.core.switches import is_on

E = TypeVar("E", bound=BaseException)
P = ParamSpec("P")
R = TypeVar("R")

_config: Any = jax.config  # its options are attributes that no type knows
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
    """The same error with a traceback of the user's frames, and, if it is weft's, without JAX's note that it cut."""
    if _whole.get() or is_on(VERBOSE) or _config.jax_traceback_filtering == "off":
        return error
    for one in _causes(error):
        entries = _entries(one.__traceback__)
        one.__traceback__ = _linked([entry for entry in entries[:-1] if is_users(entry.tb_frame)] + entries[-1:])
    if not isinstance(error, WeftError):
        error.__traceback__ = _linked(_users_and_end(_entries(error.__traceback__)))
        return error
    error.__traceback__ = users_frames(error.__traceback__)
    if notes := getattr(error, "__notes__", None):
        notes[:] = [note for note in notes if "JAX_TRACEBACK_FILTERING" not in note]
    return error


def cutting(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose errors have their tracebacks cut: for public functions that no transform calls."""

    @functools.wraps(function)
    def cut_function(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except Exception as error:
            cut(error)
            raise

    return cut_function


def _causes(error: BaseException) -> list[BaseException]:
    """What an error was raised from. JAX puts there, too, where an operation was written that it has transformed."""
    found: list[BaseException] = []
    while error.__cause__ is not None and error.__cause__ not in found:
        error = error.__cause__
        found.append(error)
    return found


def users_frames(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of libraries."""
    return _linked([entry for entry in _entries(traceback) if is_users(entry.tb_frame)])


def _users_and_end(entries: list[TracebackType]) -> list[TracebackType]:
    """The user's entries, and what comes after the last of them, less what only leads there."""
    last = max((n for n, entry in enumerate(entries) if is_users(entry.tb_frame)), default=-1)
    end = [entry for entry in entries[last + 1 : -1] if not _leads_there(entry.tb_frame)]
    return [entry for entry in entries[: last + 1] if is_users(entry.tb_frame)] + end + entries[last + 1 :][-1:]


def _leads_there(frame: FrameType) -> bool:
    return is_machinery(frame) or "__tracebackhide__" in frame.f_code.co_varnames


def _entries(traceback: TracebackType | None) -> list[TracebackType]:
    entries: list[TracebackType] = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    return entries


def _linked(entries: list[TracebackType]) -> TracebackType | None:
    result: TracebackType | None = None
    for one in reversed(entries):
        result = TracebackType(result, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return result
