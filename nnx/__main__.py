"""`python -m weft.nnx SCRIPT [ARGS]` or `-m MODULE [ARGS]`: runs a program of flax.nnx over weft.nnx, as it is."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence
from types import TracebackType

# The pytest plugin reads it in xdist's workers, which are processes of their own.
ENVIRONMENT = "WEFT_NNX_INSTALL"
USAGE = "usage: python -m weft.nnx SCRIPT [ARGS...]\n       python -m weft.nnx -m MODULE [ARGS...]"
# Files whose frames come before the program's own.
_STARTING = ("<frozen runpy>", runpy.__file__, __file__)


def main(arguments: Sequence[str]) -> int:
    """Installs, and runs a script or a module as `__main__`.

    Args:
        arguments: the script's path, or `-m` and a module's name, then its own arguments.

    Returns:
        The exit status: 2 for arguments that name no program.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    from weft.nnx.interop.installing import install

    install()
    os.environ[ENVIRONMENT] = "1"
    if arguments[0] == "-m":
        if len(arguments) < 2:
            print(USAGE, file=sys.stderr)
            return 2
        if not _is_there(arguments[1]):
            return _refuse(f"no module named {arguments[1]!r}")
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    script = arguments[0]
    if not os.path.exists(script):
        return _refuse(f"can't open file {script!r}: no such file")
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        return _refuse(f"can't run folder {script!r}: it has no __main__.py")
    # Python puts a script's folder first, where `-m` has put the current one; a folder that is run is first itself.
    sys.path[0] = os.path.abspath(script if os.path.isdir(script) else os.path.dirname(script))
    sys.argv = list(arguments)
    runpy.run_path(script, run_name="__main__")
    return 0


def _refuse(why: str) -> int:
    print(f"python -m weft.nnx: {why}", file=sys.stderr)
    return 2


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        # A package that is not there; one that is there and lacks something says so itself.
        return error.name is None or not f"{module}.".startswith(f"{error.name}.")
    except ValueError:
        return True  # it is this process's `__main__`, or has no spec: runpy says what is wrong


def of_the_program(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback from the program's first frame on, without those that started it."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename in _STARTING:
        traceback = traceback.tb_next
    return traceback


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    sys.__excepthook__(kind, error.with_traceback(of_the_program(traceback)), error.__traceback__)


if __name__ == "__main__":
    sys.excepthook = _show
    sys.exit(main(sys.argv[1:]))
