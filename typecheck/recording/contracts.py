"""`--contracts PACKAGE SCRIPT`: a program under the contracts of packages that know nothing of weft."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType

from weft.typecheck.calls.importing import ImportHook, ImportHookError, install_import_hook
from weft.typecheck.recording.scripts import STARTING, ProgramError, of_the_program, run_program

USAGE = "usage: weft check --contracts PACKAGE[,...] (SCRIPT | -m MODULE) [ARGS...]"


def main(arguments: Sequence[str]) -> int:
    """`--contracts`: the packages come first, then the program and its arguments."""
    sys.excepthook = _show
    return run_under_contracts(arguments[0] if arguments else "", arguments[1:])


def _show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """An error of the program, without the frames that started it."""
    started = traceback
    while started is not None and started.tb_frame.f_code.co_filename != STARTING[-1]:
        started = started.tb_next
    # What fails before the program runs is ours.
    shown = of_the_program(started) or traceback
    sys.__excepthook__(kind, error.with_traceback(shown), shown)


def run_under_contracts(packages: str, arguments: Sequence[str]) -> int:
    """Runs a script or a module with the contracts of packages checked, and says in the end what could not be.

    Args:
        packages: names, separated by commas.
        arguments: the script's path, or `-m` and a module's name, then its own arguments.

    Returns:
        The exit code: 2 for arguments that name no program, or packages that are imported already.
    """
    names = [one for one in packages.split(",") if one]
    if not names or not arguments:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        hook = install_import_hook(names)
    except ImportHookError as error:
        print(f"weft check: --contracts: {error.what}: {', '.join(map(str, names))}", file=sys.stderr)
        return 2
    try:
        run_program(arguments)
    except ProgramError as error:
        print(f"weft check --contracts: {error.what}", file=sys.stderr)
        return 2
    except BaseException:
        _say(hook)
        raise
    _say(hook)
    return 0


def _say(hook: ImportHook) -> None:
    for name, reason in hook.not_checked().items():
        print(f"not checked: {name}: {reason}", file=sys.stderr)
