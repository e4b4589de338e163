"""`python -m weft.nnx SCRIPT [ARGS]` or `-m MODULE [ARGS]`: runs a program of flax.nnx over weft.nnx, as it is."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

# The pytest plugin reads it in xdist's workers, which are processes of their own.
ENVIRONMENT = "WEFT_NNX_INSTALL"
USAGE = "usage: python -m weft.nnx SCRIPT [ARGS...]\n       python -m weft.nnx -m MODULE [ARGS...]"


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
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    script = arguments[0]
    if not os.path.exists(script):
        print(f"python -m weft.nnx: can't open file {script!r}: no such file", file=sys.stderr)
        return 2
    # Python puts a script's folder first, where `-m` has put the current one.
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    sys.argv = list(arguments)
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
