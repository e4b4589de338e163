"""Whose code a file holds (the user's, a library's, JAX's), and where a function or class is defined.

The *user's* are all files outside of the standard library, installed packages, and weft's own machinery. A file that is
itself being verified always counts as the user's.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal

from weft.core.caches import cached_by
from weft.core.edge.names import is_generated
from weft.core.errors import WeftError
from weft.core.frames import Owner, owner_of
from weft.typecheck.proofs.wording import first_line


@cached_by("nothing", most=1)
def _targets() -> tuple[str, ...]:
    """The folders on the path into which `pip install --target` has put packages; each holds their `*.dist-info`."""
    folders = [Path(folder) for folder in sys.path if folder]
    return tuple(f"{folder}/" for folder in folders if next(folder.glob("*.dist-info"), None) is not None)


def is_installed(filename: str) -> bool:
    """Whether a file belongs to the standard library or to an installed package, of any environment."""
    return owner_of(filename) in ("standard", "installed") or filename.startswith(_targets())


# These files run ops, so they are machinery. weft's other modules are programs to judge, unless weft is installed.
_WEFT = Path(__file__).parents[2]
_WEFTS = ("machinery", "contracts")
_MACHINERY = tuple(str(_WEFT / "modules" / name) for name in ("op.py", "untouched.py"))
# Lines at a prompt of Python's or IPython's. A target's own `<string>` is the user's, too (`python -c`); any other is
# what `dataclasses` generated.
_TYPED = ("<stdin>", "<python-input", "<ipython-input")
_IS_INSTALLED = any(name in __file__ for name in ("site-packages", "dist-packages"))


@cached_by("file")
def is_users(filename: str, own: frozenset[str] = frozenset()) -> bool:
    """Whether a file holds the user's code."""
    if filename in own or filename.startswith(_TYPED):
        return True
    owner = owner_of(filename)
    if owner == "modules":
        return not _IS_INSTALLED and filename not in _MACHINERY
    return owner == "user" and not filename.startswith(_targets())


def is_transforms(filename: str) -> bool:
    """Whether a file belongs to JAX, or to the parts of weft that define transforms."""
    return owner_of(filename) in ("jax", "machinery", "nnx")


def is_of_jax(error: Exception | None) -> bool:
    """Whether JAX raised an error, rather than a program or Python."""
    return _raised_by(error) == "jax"


def is_of_library(error: Exception | None) -> bool:
    """Whether an installed package, or equinox, raised an error."""
    return _raised_by(error) in ("equinox", "installed")


def is_of_weft(error: Exception) -> bool:
    """Whether an error is a fault of weft's: a line of its own failed, and no program's called that line."""
    owners = _owners(error)
    if isinstance(error, WeftError | RecursionError | MemoryError) or not owners or owners[-1] not in _WEFTS:
        return False
    # A name that is missing in a line is missing whoever calls it. Most other errors come from what a program passes.
    return isinstance(error, NameError) or all(owner in (*_WEFTS, "standard") for owner in owners)


def text_of_fault(error: Exception) -> str:
    """The type, message and innermost line of weft's of an error."""
    where = "outside of weft"
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename).resolve()
        where = f"{path.relative_to(_WEFT)}:{frame.lineno}" if path.is_relative_to(_WEFT) else where
    return f"weft failed: {type(error).__name__}: {first_line(error)} ({where}); please report it"


def _raised_by(error: Exception | None) -> Owner | None:
    return next(reversed(_owners(error)), None)


def _owners(error: Exception | None) -> list[Owner]:
    frames = traceback.walk_tb(None if error is None else error.__traceback__)
    return [owner_of(frame.f_code.co_filename) for frame, _ in frames]


class Whose(dict[str, Literal["user", "library", "plain"]]):
    """Whose code a file holds, computed at the first look-up. *Plain* libraries are those that define no records."""

    def __init__(self, own: frozenset[str]):
        self.own = own

    def of(self, code: CodeType) -> Literal["user", "library", "plain"]:
        """Whose code this is; what `dataclasses` generates has no file, as the code of `python -c` has none."""
        return "library" if is_generated(code) else self[code.co_filename]

    def __missing__(self, filename: str) -> Literal["user", "library", "plain"]:
        plain = owner_of(filename) in ("standard", "jax")
        self[filename] = "user" if is_users(filename, self.own) else "plain" if plain else "library"
        return self[filename]


def file_of_init(frame: FrameType) -> str:
    """The file of a constructor; if `dataclasses` generated it, the file of its class."""
    filename = frame.f_code.co_filename
    return frame.f_globals.get("__file__", filename) if is_generated(frame.f_code) else filename


def place_of(owner: Any) -> tuple[str, int]:
    """The file and line where a function or class is defined."""
    owner = inspect.unwrap(owner)
    code = getattr(owner, "__code__", None)
    if code is not None:
        return code.co_filename, _line_of_def(code)
    try:
        return inspect.getsourcefile(owner) or "", inspect.getsourcelines(owner)[1]
    except (OSError, TypeError):
        return "", 0


def _line_of_def(code: CodeType) -> int:
    # `co_firstlineno` is the first decorator's line; the body's first instruction sits on the `def` itself.
    lines = [line for _, _, line in code.co_lines() if line is not None and line >= code.co_firstlineno]
    return min(lines, default=code.co_firstlineno)


@cached_by("class")
def file_of(cls: type) -> str:
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or place_of(cls)[0]
