"""The command `weft` (also `python -m weft.typecheck`): `weft check PATH|MODULE...`.

Exit code 0 if nothing fails, 1 if something does, 2 if something could not be used: a file that does not import, an
annotation that cannot be read, an option that does not exist. The rest is checked all the same. What is undecided, for
the search for a verdict came to the end of its trials, is told of and is no failure; under `--strict` it is one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence

from weft.typecheck.command.linter import Checked, Line, check
from weft.typecheck.errors import AnnotationError, BudgetError, ModeError
from weft.typecheck.modes import current_mode
from weft.typecheck.proofs.budget import USUAL, Budget

_LEVELS = {
    "error": "error",
    "unusable": "error",
    "warning": "warning",
    "undecided": "warning",
    "unbuilt": "notice",
    "skipped": "notice",
}


def as_text(checked: Checked) -> str:
    """One line a finding, then what had to be assumed, then the summary."""
    lines = [_text(line) for line in checked.lines]
    return "\n".join([*lines, *checked.assumptions, checked.summary])


def _text(line: Line) -> str:
    prefix = "" if line.level == "error" else f"{'skipped' if line.level == 'skipped' else line.level}: "
    return (
        f"{line.file}:{line.line}: {line.name}: {prefix if line.level in ('warning', 'skipped') else ''}{line.message}"
    )


def as_json(checked: Checked) -> str:
    """An object with the findings, the assumptions and the counts."""
    return json.dumps(
        {
            "findings": [vars(line) for line in checked.lines],
            "assumptions": list(checked.assumptions),
            "summary": checked.summary,
            "exit_code": checked.exit_code,
        },
        indent=2,
    )


def as_github(checked: Checked) -> str:
    """Workflow commands, which show up as annotations of a pull request."""
    lines = [
        f"::{_LEVELS[one.level]} file={one.file},line={one.line},title={_escaped(one.name)}::{_escaped(one.message)}"
        for one in checked.lines
    ]
    return "\n".join([*lines, checked.summary])


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


FORMATS: dict[str, Callable[[Checked], str]] = {"text": as_text, "json": as_json, "github": as_github}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser("weft", description="Tools for weft programs.")
    commands = top.add_subparsers(dest="command", required=True)
    command = commands.add_parser("check", help="verify the shape contracts of files and modules, for all sizes")
    command.add_argument("names", nargs="+", metavar="PATH|MODULE", help="files, folders, or modules by dotted name")
    command.add_argument("--format", choices=FORMATS, default="text", help="how to print (default: text)")
    command.add_argument("--only", metavar="REGEX", help="check only what has a name that matches")
    command.add_argument("--strict", action="store_true", help="warnings, and what is undecided, are failures")
    command.add_argument("-j", "--jobs", type=int, default=1, help="how many processes (0: one a core)")
    command.add_argument(
        "--trials", type=int, default=USUAL.trials, metavar="N", help="traces for each proof (default: %(default)s)"
    )
    command.add_argument(
        "--seconds", type=float, default=USUAL.seconds, metavar="S", help="limit for each proof (default: %(default)g)"
    )
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = parser().parse_args(argv)
    jobs = options.jobs or os.cpu_count() or 1
    usable = _usable_mode()
    try:
        budget = Budget(options.trials, options.seconds)
        checked = check(options.names, only=options.only, strict=options.strict, jobs=jobs, budget=budget)
    except (AnnotationError, BudgetError) as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        return 2
    print(FORMATS[options.format](checked))
    return checked.exit_code if usable else 2


def _usable_mode() -> bool:
    """Whether `WEFT_TYPECHECK` names a mode; if not, that is said, and contracts are on while files are imported."""
    try:
        current_mode()
    except ModeError as error:
        print(error, file=sys.stderr)
        os.environ["WEFT_TYPECHECK"] = "on"
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
