"""Running a program of flax as `python SCRIPT` or `python -m MODULE` would, for `python -m weft.nnx`."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence
from types import TracebackType

from weft.core.errors import WeftError

# Files whose frames come before the program's own.
STARTING = ("<frozen runpy>", runpy.__file__, __file__)


class ProgramError(WeftError, ValueError):
    """Arguments that name no program, or none that Python can read; nothing of it has run."""


def run_program(arguments: Sequence[str]) -> None:
    """Runs a script or a module as `__main__`.

    Args:
        arguments: the script's path, or `-m` and a module's name, then its own arguments.

    Raises:
        ProgramError: in one line, if there is nothing to run. Whatever the program itself raises, `SystemExit` too,
            passes.
    """
    try:
        if arguments[:1] == ["-m"]:
            _run_module(arguments[1:])
        else:
            _run_script(arguments)
    except (SyntaxError, ImportError, OSError, ValueError) as error:
        # One that is raised before any frame of the program's is about the file that it is in, and not by it.
        if of_the_program(error.__traceback__) is not None:
            raise
        if not isinstance(error, SyntaxError):
            raise ProgramError(str(error)) from None
        where = "" if error.filename else f" ({arguments[0]})"
        raise ProgramError(f"SyntaxError: {error}{where}") from None


def _run_module(arguments: Sequence[str]) -> None:
    if not arguments:
        raise ProgramError("-m needs the name of a module")
    if not _is_there(arguments[0]):
        raise ProgramError(f"no module named {arguments[0]!r}")
    sys.argv = list(arguments)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _run_script(arguments: Sequence[str]) -> None:
    script = arguments[0]
    if not os.path.exists(script):
        raise ProgramError(f"can't open file {script!r}: no such file")
    is_folder = os.path.isdir(script)
    if is_folder and not os.path.exists(os.path.join(script, "__main__.py")):
        raise ProgramError(f"can't run folder {script!r}: it has no __main__.py")
    # Python puts a script's folder first, where `-m` has put the current one; a folder that is run is first itself.
    sys.path[0] = os.path.abspath(script if is_folder else os.path.dirname(script))
    sys.argv = list(arguments)
    # A script's `__file__` is absolute, so that it holds when the program changes its folder.
    path = script if is_folder else os.path.abspath(script)
    runpy.run_path(path, run_name="__main__")


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        # A package that is not there; one that is there and lacks something says so itself.
        return error.name is None or not f"{module}.".startswith(f"{error.name}.")
    except ValueError:
        return True  # it is this process's `__main__`, or has no spec: runpy says what is wrong


def of_the_program(traceback: TracebackType | None, starting: Sequence[str] = STARTING) -> TracebackType | None:
    """A traceback from the program's first frame on, without those that started it."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename in starting:
        traceback = traceback.tb_next
    return traceback
