"""`python -m weft.nnx SCRIPT [ARGS]` or `-m MODULE [ARGS]`: runs an unmodified flax.nnx program over weft.nnx.

The program runs as `python SCRIPT` or `python -m MODULE` would run it.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence
from types import TracebackType

from weft.core.errors import WeftError

# Files whose frames are cut from the program's tracebacks.
STARTING = ("<frozen runpy>", runpy.__file__, __file__)


class ProgramError(WeftError, ValueError):
    """Raised before a program starts, if the arguments name no program, or one that Python cannot read."""


def run_program(arguments: Sequence[str]) -> None:
    """Runs a script or a module as `__main__`.

    Args:
        arguments: the script's path, or `-m` and a module's name, then its own arguments.

    Raises:
        ProgramError: with a message of one line, if there is nothing to run. Exceptions of the program itself, such as
            `SystemExit`, are not caught.
    """
    try:
        if arguments[:1] == ["-m"]:
            if not arguments[1:]:
                raise ProgramError("-m needs the name of a module")
            if not _exists(arguments[1]):
                raise ProgramError(f"no module named {arguments[1]!r}")
            # `alter_sys` puts the module's file in the place of its name, as `python -m` does.
            sys.argv = list(arguments[1:])
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            _run_script(arguments)
    except (SyntaxError, ImportError, OSError, ValueError) as error:
        # Without a frame of the program in its traceback, the error is about the program's file and not from its code.
        if of_the_program(error.__traceback__) is not None:
            raise
        if not isinstance(error, SyntaxError):
            raise ProgramError(str(error)) from None
        where = "" if error.filename else f" ({arguments[0]})"
        raise ProgramError(f"SyntaxError: {error}{where}") from None


def _run_script(arguments: Sequence[str]) -> None:
    script = arguments[0]
    if not os.path.exists(script):
        raise ProgramError(f"can't open file {script!r}: no such file")
    is_folder = os.path.isdir(script)
    if is_folder and not os.path.exists(os.path.join(script, "__main__.py")):
        raise ProgramError(f"can't run folder {script!r}: it has no __main__.py")
    # As `python SCRIPT` does: the script's folder (or the folder that is run) comes first, not the current one.
    sys.path[0] = os.path.abspath(script if is_folder else os.path.dirname(script))
    sys.argv = list(arguments)
    # An absolute `__file__` stays valid when the program changes its working directory.
    path = script if is_folder else os.path.abspath(script)
    runpy.run_path(path, run_name="__main__")


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        # The module or a package of its path is missing. Any other missing module is a failed import inside the
        # package.
        return error.name is None or not f"{module}.".startswith(f"{error.name}.")
    except ValueError:
        return True  # `__main__`, or a module without a spec, for which runpy raises a clear error


def of_the_program(traceback: TracebackType | None) -> TracebackType | None:
    """Returns a traceback from the program's first frame on, without the frames that started it."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename in STARTING:
        traceback = traceback.tb_next
    return traceback


# The workers of pytest-xdist are separate processes: weft's pytest plugin reads this variable there and installs.
ENVIRONMENT = "WEFT_NNX_INSTALL"
USAGE = "usage: python -m weft.nnx SCRIPT [ARGS...]\n       python -m weft.nnx -m MODULE [ARGS...]"


def main(arguments: Sequence[str]) -> int:
    """Installs weft.nnx as flax.nnx, and runs a script or module as `__main__`.

    Args:
        arguments: the script's path, or `-m` and a module's name, then its own arguments.

    Returns:
        The exit status: 2 for arguments that name no program.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    os.environ[ENVIRONMENT] = "1"
    if list(arguments[:2]) == ["-m", "pytest"]:
        # Replaces this process. If the plugin cannot be used, it returns, and pytest runs here as any module does.
        _start_pytest(arguments)
    from weft.nnx.interop.installing import install

    install()
    try:
        run_program(arguments)
    except ProgramError as error:
        print(f"python -m weft.nnx: {error.what}", file=sys.stderr)
        return 2
    return 0


def _start_pytest(arguments: Sequence[str]) -> None:
    """Replaces this process by pytest, in which weft's pytest plugin installs.

    This process has imported weft, and with it jaxtyping and beartype. pytest warns of plugins that were imported
    before it could rewrite their assertions, and under `filterwarnings = error` the warning is an error.
    """
    # pytest's option `-p no:weft` turns the plugin off.
    is_off = "no:weft" in arguments or os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    if is_off or importlib.util.find_spec("weft_pytest") is None:
        return
    # Python's own options (`-X dev`, `-W error`) come before `-m weft.nnx`, and pytest gets them, too.
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(arguments)]
    start = next((i for i, option in enumerate(options) if option.startswith("-m")), None)
    if start is None:
        return  # called as a function
    os.execv(sys.executable, [sys.executable, *options[:start], *arguments])


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    sys.__excepthook__(kind, error.with_traceback(of_the_program(traceback)), error.__traceback__)


if __name__ == "__main__":
    sys.excepthook = _show
    sys.exit(main(sys.argv[1:]))
