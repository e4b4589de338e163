"""Running a program as `python SCRIPT` or `python -m MODULE` would: under contracts, or while its calls are recorded.

`python -m weft.nnx` runs programs of flax by it, too.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, TracebackType

from weft.core.errors import WeftError

# Files whose frames come before the program's own.
STARTING = ("<frozen runpy>", runpy.__file__, __file__)

# Changes the source of a script before it runs in its module.
Change = Callable[[ast.Module, ModuleType], ast.Module]


class ProgramError(WeftError, ValueError):
    """Arguments that name no program, or none that Python can read; nothing of it has run."""


def run_program(arguments: Sequence[str], change: Change | None = None) -> None:
    """Runs a script or a module as `__main__`.

    Args:
        arguments: the script's path, or `-m` and a module's name, then its own arguments.
        change: changes a script's source; a module that `-m` names is run as it is.

    Raises:
        ProgramError: in one line, if there is nothing to run. Whatever the program itself raises, `SystemExit` too,
            passes.
    """
    try:
        if arguments[:1] == ["-m"]:
            _run_module(arguments[1:])
        else:
            _run_script(arguments, change)
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


def _run_script(arguments: Sequence[str], change: Change | None) -> None:
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
    if change is None or is_folder:
        runpy.run_path(path, run_name="__main__")
    else:
        _run_changed(path, change)


def _run_changed(script: str, change: Change) -> None:
    module = ModuleType("__main__")
    module.__file__ = script
    source = Path(script).read_bytes()
    # What `ast.parse` does, without a frame of another file.
    tree = compile(source, script, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    assert isinstance(tree, ast.Module)  # as it is in this mode
    sys.modules["__main__"] = module
    exec(compile(change(tree, module), script, "exec", dont_inherit=True), vars(module))


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
