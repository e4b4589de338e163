"""Whose code a file holds and a frame runs: weft's, JAX's or equinox's, that of other packages, or the user's.

There is one table of owners, which callers group by their own question. An error names the line of the user, or of a
package such as optax that calls weft; a proof is about one program, for which optax is a library (see
`typecheck/proofs/frames.py`).
"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType, FunctionType
from typing import Literal

import equinox
import jax
from weft.core.caches import cached_by

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
