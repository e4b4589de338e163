"""The trace-frame stack: which transforms the running code is inside of.

A *frame* is one transform being traced: its name, and the axis name and size (or length) it adds. Transforms open a
frame while they trace the user's function; errors and contracts cite the whole stack, outermost first:
`jit > vmap(axis_name='batch', size=16) > scan(length=10)`. The stack is a context variable, so threads and async
tasks never see each other's frames.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """One transform that is being traced, with the details that errors show."""

    transform: str
    details: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        if not self.details:
            return self.transform
        return f"{self.transform}({', '.join(f'{name}={value!r}' for name, value in self.details)})"


_STACK: ContextVar[tuple[Frame, ...]] = ContextVar("weft_frames", default=())


def current_frames() -> tuple[Frame, ...]:
    """The open frames, outermost first."""
    return _STACK.get()


def format_frames(frames: tuple[Frame, ...] | None = None) -> str:
    """The stack on one line, outermost first; empty outside every transform.

    >>> with open_frame("jit"), open_frame("vmap", axis_name="batch", size=16):
    ...     format_frames()
    "jit > vmap(axis_name='batch', size=16)"
    """
    return " > ".join(map(str, current_frames() if frames is None else frames))


@contextlib.contextmanager
def open_frame(transform: str, /, **details: object) -> Generator[Frame]:
    """Opens a frame for the length of a `with` block; details that are `None` are left out."""
    frame = Frame(transform, tuple([(name, value) for name, value in details.items() if value is not None]))
    token = _STACK.set((*_STACK.get(), frame))
    try:
        yield frame
    finally:
        _STACK.reset(token)
