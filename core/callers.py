"""Whose code a Python frame runs: the user's, or that of weft and of what it stands on."""

from __future__ import annotations

import os
import sys
from types import FrameType, FunctionType

import equinox
import jax

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# weft's own packages, not everything beside them: tests and examples are users.
# What only passes calls on: a layer of `modules` or `nnx` has a name that the user wrote.
_MACHINERY = tuple(os.path.join(_ROOT, package, "") for package in ("core", "transforms", "typecheck"))
_LIBRARIES = (
    "<frozen ",  # what starts a program: `python -m`, and imports
    *_MACHINERY,
    *(
        os.path.join(folder, "")
        for folder in (
            *(os.path.join(_ROOT, package) for package in ("modules", "nnx")),
            *(os.path.dirname(os.path.abspath(str(library.__file__))) for library in (jax, equinox)),
        )
    ),
)


def is_users(code: FrameType | FunctionType) -> bool:
    """Whether a frame runs the user's code, or a function is made of it."""
    owner = code.f_code if isinstance(code, FrameType) else code.__code__
    return is_users_file(owner.co_filename)


def is_users_file(file: str) -> bool:
    """Whether a file of code is the user's."""
    return not file.startswith(_LIBRARIES)


def is_machinery(frame: FrameType) -> bool:
    """Whether a frame runs what weft passes calls on by: the interpreter, transforms, contracts."""
    return frame.f_code.co_filename.startswith(_MACHINERY)


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
