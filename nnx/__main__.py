"""`python -m weft.nnx SCRIPT [ARGS]` or `-m MODULE [ARGS]`: runs a program of flax.nnx over weft.nnx, as it is."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from types import TracebackType

from weft.nnx.scripts import STARTING, ProgramError, of_the_program, run_program

# The pytest plugin reads it in xdist's workers, which are processes of their own.
ENVIRONMENT = "WEFT_NNX_INSTALL"
USAGE = "usage: python -m weft.nnx SCRIPT [ARGS...]\n       python -m weft.nnx -m MODULE [ARGS...]"
# Files whose frames come before the program's own.
_STARTING = (*STARTING, __file__)


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
    """Starts pytest in place of this process, which has imported weft, and so jaxtyping and beartype.

    pytest warns of plugins that are imported before it can rewrite their assertions, which is an error under
    `filterwarnings = error`. weft's own plugin installs there, as it does in the workers of pytest-xdist.
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
