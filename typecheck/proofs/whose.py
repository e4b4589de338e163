"""Whose code a file holds, and where a function or class is defined.

*User's* is every file outside the standard library, the installed packages, and weft's own machinery; a file that is
itself being verified always counts.
"""

from __future__ import annotations

import dis
import inspect
import site
import sys
import sysconfig
import traceback
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal

import jax
from weft.core.caches import kept

# What folders of installed packages are called.
_INSTALLED = ("site-packages", "dist-packages")


@kept("nothing", most=1)
def installed_roots() -> tuple[str, ...]:
    """The folders of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    roots = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()}
    roots |= {one for one in sys.path if one and _is_of_installed(Path(one))}  # another environment's, by PYTHONPATH
    return tuple(f"{Path(root)}/" for root in sorted(roots))


def _is_of_installed(folder: Path) -> bool:
    """Whether a folder holds installed packages: by its name, or by what `pip install --target` leaves beside them."""
    return folder.name in _INSTALLED or next(folder.glob("*.dist-info"), None) is not None


@kept("nothing", most=1)
def _library_roots() -> tuple[str, ...]:
    weft = Path(__file__).parents[2]
    of_weft = (f"{weft / part}/" for part in ("core", "transforms", "typecheck", "nnx"))
    # How an op runs is machinery; ops and layers are programs like any other.
    machinery = (str(weft / "modules" / name) for name in ("op.py", "untouched.py"))
    return (*installed_roots(), *of_weft, *machinery)


@kept("file")
def is_users(filename: str, own: frozenset[str] = frozenset()) -> bool:
    """Whether a file holds user's code."""
    if filename == "<string>":  # what dataclasses generate
        return False
    return filename in own or (not filename.startswith("<") and not filename.startswith(_library_roots()))


_JAX, _STANDARD = (str(Path(str(module.__file__)).parent) + "/" for module in (jax, dis))


def is_transforms(filename: str) -> bool:
    """Whether a file is one of JAX's, or of those of weft that define transforms."""
    weft = Path(__file__).parents[2]
    return filename.startswith((_JAX, *(f"{weft / part}/" for part in ("core", "transforms", "nnx"))))


def is_of_jax(error: Exception | None) -> bool:
    """Whether JAX raised an error, and neither a program nor Python."""
    frames = [frame for frame, _ in traceback.walk_tb(None if error is None else error.__traceback__)]
    return bool(frames) and frames[-1].f_code.co_filename.startswith(_JAX)


class Whose(dict[str, Literal["user", "library", "plain"]]):
    """Whose code a file holds, found out at the first look-up; *plain* libraries define no records."""

    def __init__(self, own: frozenset[str]):
        self.own = own

    def __missing__(self, filename: str) -> Literal["user", "library", "plain"]:
        standard = filename.startswith(_STANDARD) and "-packages" not in filename
        plain = standard or filename.startswith(_JAX)
        self[filename] = "user" if is_users(filename, self.own) else "plain" if plain else "library"
        return self[filename]


def file_of_init(frame: FrameType) -> str:
    """The file of a constructor; of one that dataclasses generated, that of its class."""
    filename = frame.f_code.co_filename
    return frame.f_globals.get("__file__", filename) if filename == "<string>" else filename


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


@kept("class")
def file_of(cls: type) -> str:
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or place_of(cls)[0]
