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

# Files whose frames come before the program's own.
STARTING = ("<frozen runpy>", runpy.__file__, __file__)

# Changes the source of a script before it runs in its module.
Change = Callable[[ast.Module, ModuleType], ast.Module]


def run_program(arguments: Sequence[str], name: str, usage: str, change: Change | None = None) -> int:
    """Runs a script or a module as `__main__`.

    Args:
        arguments: the script's path, or `-m` and a module's name, then its own arguments.
        name, usage: of the command, for what it says if it cannot.
        change: changes a script's source; a module that `-m` names is run as it is.

    Returns:
        0, or 2 for arguments that name no program, or none that Python can read. Whatever else the program raises,
        `SystemExit` too, passes.
    """
    if arguments[:1] == ["-m"]:
        if len(arguments) < 2:
            print(usage, file=sys.stderr)
            return 2
        if not _is_there(arguments[1]):
            return _refuse(name, f"no module named {arguments[1]!r}")
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    script = arguments[0]
    if not os.path.exists(script):
        return _refuse(name, f"can't open file {script!r}: no such file")
    is_folder = os.path.isdir(script)
    if is_folder and not os.path.exists(os.path.join(script, "__main__.py")):
        return _refuse(name, f"can't run folder {script!r}: it has no __main__.py")
    # Python puts a script's folder first, where `-m` has put the current one; a folder that is run is first itself.
    sys.path[0] = os.path.abspath(script if is_folder else os.path.dirname(script))
    sys.argv = list(arguments)
    # A script's `__file__` is absolute, so that it holds when the program changes its folder.
    path = script if is_folder else os.path.abspath(script)
    try:
        if change is None or is_folder:
            runpy.run_path(path, run_name="__main__")
        else:
            _run_changed(path, change)
    except SyntaxError as error:
        if error.filename != path:
            raise
        return _refuse(name, f"SyntaxError: {error}")
    return 0


def _run_changed(script: str, change: Change) -> None:
    module = ModuleType("__main__")
    module.__file__ = script
    tree = ast.parse(Path(script).read_bytes(), script)
    sys.modules["__main__"] = module
    exec(compile(change(tree, module), script, "exec", dont_inherit=True), vars(module))


def _refuse(name: str, why: str) -> int:
    print(f"{name}: {why}", file=sys.stderr)
    return 2


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
