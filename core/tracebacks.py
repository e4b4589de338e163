"""Tracebacks, cut to the user's frames.

The frames of weft, JAX and equinox between the user's functions say nothing about a mistake, and there are ten of them
for each of the user's. Weft removes them when an error passes through a method or a transformed call:

- of weft's own errors only the user's frames stay;
- of any other error the frames below the user's last one stay too, because the place where it was raised may be all
  that it says;
- of the errors that an error was raised from, the user's frames and the last one stay.

`WEFT_TYPECHECK_VERBOSE=1` keeps all frames, as does JAX's switch, `JAX_TRACEBACK_FILTERING=off`. A frame or two of the
outermost call always stay; `__tracebackhide__` hides them from pytest and IPython. The process's hook for uncaught
errors is not changed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import jax
from weft.core.edge.contexts import is_on
from weft.core.errors import WeftError
from weft.core.frames import is_machinery, is_users

E = TypeVar("E", bound=BaseException)
P = ParamSpec("P")
R = TypeVar("R")

_config: Any = jax.config  # its options are attributes that no type knows
VERBOSE = "WEFT_TYPECHECK_VERBOSE"


def cut(error: E) -> E:
    """Cuts the traceback of an error to the user's frames, and returns the error. Weft's errors also lose JAX's note
    about filtered tracebacks."""
    if is_on(VERBOSE) or _config.jax_traceback_filtering == "off":
        return error
    for cause in _causes(error):
        entries = entries_of(cause.__traceback__)
        cause.__traceback__ = _linked([entry for entry in entries[:-1] if is_users(entry.tb_frame)] + entries[-1:])
    if not isinstance(error, WeftError):
        error.__traceback__ = _linked(_users_and_end(entries_of(error.__traceback__)))
        return error
    error.__traceback__ = users_frames(error.__traceback__)
    if notes := getattr(error, "__notes__", None):
        notes[:] = [note for note in notes if "JAX_TRACEBACK_FILTERING" not in note]
    return error


def cutting(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a public function that is no transform, so that the tracebacks of its errors are cut."""

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
    """The errors that an error was raised from. JAX raises from an error whose traceback shows where a transformed
    operation was written."""
    causes: list[BaseException] = []
    while error.__cause__ is not None and error.__cause__ not in causes:
        error = error.__cause__
        causes.append(error)
    return causes


def users_frames(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of libraries."""
    return _linked([entry for entry in entries_of(traceback) if is_users(entry.tb_frame)])


def _users_and_end(entries: list[TracebackType]) -> list[TracebackType]:
    """The user's entries and those after the last of them, without frames of weft's that only pass a call on."""
    last = max((n for n, entry in enumerate(entries) if is_users(entry.tb_frame)), default=-1)
    end = [
        entry
        for entry in entries[last + 1 : -1]
        if not is_machinery(entry.tb_frame) and "__tracebackhide__" not in entry.tb_frame.f_code.co_varnames
    ]
    return [entry for entry in entries[: last + 1] if is_users(entry.tb_frame)] + end + entries[last + 1 :][-1:]


def entries_of(traceback: TracebackType | None) -> list[TracebackType]:
    """The entries of a traceback, the outermost first."""
    entries: list[TracebackType] = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    return entries


def _linked(entries: list[TracebackType]) -> TracebackType | None:
    result: TracebackType | None = None
    for entry in reversed(entries):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result
