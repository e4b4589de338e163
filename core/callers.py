"""Whose code a file holds, and a frame runs: weft's, that of what it stands on, of other packages, or the user's.

There is one table. Who asks has a question of its own, for which some owners are alike: an error is told by the user's
line, for which optax is as good as the user; a proof is about one program, for which optax is a library (see
`typecheck/proofs/whose.py`).
"""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType, FunctionType
from typing import Literal

import equinox
import jax
from weft.core.caches import kept

# `generated` is what has no file: what a dataclass writes, a prompt's lines. `frozen` starts a program (`python -m`).
Owner = Literal[
    "machinery", "contracts", "nnx", "modules", "jax", "equinox", "installed", "standard", "frozen", "generated", "user"
]

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Weft's own packages, not everything beside them: tests and examples are users. The first that fits decides: weft, JAX
# and equinox are installed, and what is installed mostly lies below the standard library.
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
# What folders of installed packages are called: those of other environments are installed as well.
_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


@kept("file")
def owner_of(file: str) -> Owner:
    """Whose code a file holds, by the name that code objects have for it.

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


# Whoever's line an error can be told by: not what passes a call on, nor what starts a program.
_OUTSIDE = frozenset[Owner](("user", "installed", "standard", "generated"))


def is_users(code: FrameType | FunctionType) -> bool:
    """Whether a frame runs the user's code, or a function is made of it."""
    owner = code.f_code if isinstance(code, FrameType) else code.__code__
    return owner_of(owner.co_filename) in _OUTSIDE


def is_machinery(frame: FrameType) -> bool:
    """Whether a frame runs what weft passes calls on by: the interpreter, transforms, contracts.

    What only passes calls on: a layer of `modules` or `nnx` has a name that the user wrote.
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
