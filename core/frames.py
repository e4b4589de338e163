"""Frames: which transforms the running code is inside of, whose code it is, and room for it on the stack.

- A *frame* of weft's is one transform being traced: its name, and the axis name and size (or length) it adds.
  Transforms open a frame while they trace the user's function; errors and contracts cite the whole stack, outermost
  first: `jit > vmap(axis_name='batch', size=16) > scan(length=10)`. The stack is a context variable, so threads and
  async tasks never see each other's frames.
- A frame of Python's runs code of weft, JAX, equinox, another package or the user. There is one table of owners, which
  callers group by their own question. An error names the line of the user, or of a package such as optax that calls
  weft; a proof is about one program, for which optax is a library (see `typecheck/proofs/frames.py`).
- A call that traces is hundreds of frames deep, for which `call_with_room` makes room at once.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Literal, ParamSpec, TypeVar

import equinox
import jax
from weft.core.caches import cached_by

P = ParamSpec("P")
R = TypeVar("R")

# --- whose code a frame runs ------------------------------------------------------------------------------------------

# `generated` is code without a file: methods of a dataclass, lines at a prompt. `frozen` is Python's code that starts a
# program (`python -m`).
Owner = Literal[
    "machinery", "contracts", "nnx", "modules", "jax", "equinox", "installed", "standard", "frozen", "generated", "user"
]

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Weft's own packages; tests and examples next to them count as users. The first folder that fits decides, because weft,
# JAX and equinox lie in folders of installed packages, and these mostly in the folder of the standard library.
_FOLDERS: tuple[tuple[str, Owner], ...] = (
    (os.path.join(_ROOT, "core", ""), "machinery"),
    (os.path.join(_ROOT, "transforms", ""), "machinery"),
    (os.path.join(_ROOT, "typecheck", ""), "contracts"),
    (os.path.join(_ROOT, "insight", ""), "machinery"),
    (os.path.join(_ROOT, "nnx", ""), "nnx"),
    (os.path.join(_ROOT, "modules", ""), "modules"),
    (os.path.join(os.path.dirname(os.path.abspath(jax.__file__)), ""), "jax"),
    (os.path.join(os.path.dirname(os.path.abspath(equinox.__file__)), ""), "equinox"),
    *((os.path.join(sysconfig.get_path(name), ""), "installed") for name in ("purelib", "platlib")),
)
_STANDARD = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
# The names of folders of installed packages, by which packages of other environments are recognised too.
_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


@cached_by("file")
def owner_of(file: str) -> Owner:
    """Whose code a file holds; `file` is the name that code objects have for it.

    >>> owner_of(jax.jit.__code__.co_filename), owner_of(os.__file__), owner_of("/project/train.py")
    ('jax', 'standard', 'user')
    """
    if file.startswith("<"):
        return "frozen" if file.startswith("<frozen ") else "generated"
    for folder, owner in _FOLDERS:
        if file.startswith(folder):
            return owner
    if any(name in file for name in _PACKAGES):
        return "installed"
    return "standard" if file.startswith(_STANDARD) else "user"


# The owners whose lines an error may name: neither code that only passes a call on nor code that starts a program.
_OUTSIDE = frozenset[Owner](("user", "installed", "standard", "generated"))


def is_users(code: FrameType | FunctionType) -> bool:
    """Whether a frame runs, or a function consists of, the user's code (or that of a package that calls weft)."""
    owner = code.f_code if isinstance(code, FrameType) else code.__code__
    return owner_of(owner.co_filename) in _OUTSIDE


def is_machinery(frame: FrameType) -> bool:
    """Whether a frame runs code of weft's that only passes calls on: the interpreter, transforms, contracts.

    A layer of `modules` or `nnx` is none: the user wrote its name.
    """
    return owner_of(frame.f_code.co_filename) in ("machinery", "contracts")


def place_of(frame: FrameType) -> str:
    """The function and line that a frame is at."""
    code = frame.f_code
    return f"{code.co_name} ({os.path.basename(code.co_filename)}:{frame.f_lineno})"


def shorten(file: str) -> str:
    """A file's path, relative if it is below the working directory."""
    relative = os.path.relpath(file) if os.path.isabs(file) else file
    return file if relative.startswith("..") else relative


def calling_line() -> str:
    """The innermost line of the user's that is running, as file and number."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and not is_users(frame):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


# --- the open transforms ----------------------------------------------------------------------------------------------


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


# --- room on the stack ------------------------------------------------------------------------------------------------

# CPython stores the frames of Python functions in chunks of 16 KiB, a few dozen frames each. A call that does not fit
# into the last chunk allocates a new one from the system, and frees it when it returns. If a loop runs just before the
# end of a chunk, each call in it pays for that. Tracing and lowering are such loops, and took up to 1.7 times as long
# at some depths of the caller as at others. A function with a large frame gets a chunk that is large enough for it, and
# the rest of that chunk holds the frames of all functions that it calls.
#
# The size of the frame in words. The size of a chunk is a power of two: this frame takes half of a chunk of 2 MiB, and
# the other half holds about a thousand frames. Memory that no frame uses is never touched, and costs only address
# space.
_FRAME = (1 << 17) + (1 << 10)


def call_with_room(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls a function with room for the frames of all functions that it calls.

    It takes some microseconds, to allocate and free a chunk: so it is used for calls that trace, not for every call.
    """
    __tracebackhide__ = True
    return function(*args, **kwargs)


call_with_room.__code__ = call_with_room.__code__.replace(co_stacksize=_FRAME)
