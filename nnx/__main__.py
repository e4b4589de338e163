"""`python -m weft.nnx SCRIPT [ARGS]` or `-m MODULE [ARGS]`: runs an unmodified flax.nnx program over weft.nnx."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from types import TracebackType

from weft.nnx.scripts import STARTING, ProgramError, of_the_program, run_program

# The workers of pytest-xdist are separate processes: weft's pytest plugin reads this variable there and installs.
ENVIRONMENT = "WEFT_NNX_INSTALL"
USAGE = "usage: python -m weft.nnx SCRIPT [ARGS...]\n       python -m weft.nnx -m MODULE [ARGS...]"
# Files whose frames are cut from the program's tracebacks.
_STARTING = (*STARTING, __file__)


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
    is_off = "no:weft" in arguments or os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    if is_off or importlib.util.find_spec("weft_pytest") is None:
        return
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(arguments)]
    start = next((i for i, option in enumerate(options) if option.startswith("-m")), None)
    if start is None:
        return  # called as a function
    os.execv(sys.executable, [sys.executable, *options[:start], *arguments])


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    sys.__excepthook__(kind, error.with_traceback(of_the_program(traceback, _STARTING)), error.__traceback__)


if __name__ == "__main__":
    sys.excepthook = _show
    sys.exit(main(sys.argv[1:]))
