"""The command `weft migrate`: its options and output."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import LIBRARIES

_MISSING = "weft migrate: libcst is not installed: pip install 'weft-jax[migrate]' (libcst)"


def parser() -> argparse.ArgumentParser:
    """Makes the parser of the command line."""
    top = argparse.ArgumentParser(
        "weft migrate",
        description="Rewrites the names of weft 0.2 that have another place in 0.3, and imports of flax.nnx if the "
        "program then computes the same. Prints a diff; lists on standard error the places that it does not rewrite, "
        "and uses of equinox that have a counterpart in weft, each with what to do by hand, and a table of these.",
        epilog="Exit code: 0, or 2 if a path cannot be read or written; nothing is written then.",
    )
    top.add_argument("paths", nargs="+", metavar="PATH", help="files and folders: best, a whole code base")
    top.add_argument("--write", action="store_true", help="change the files, all of them or none")
    top.add_argument("--from", dest="library", choices=LIBRARIES, help="only this library (default: all)")
    top.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="leave out such files (repeat)")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = parser().parse_args(argv)
    if importlib.util.find_spec("libcst") is None:
        print(_MISSING, file=sys.stderr)
        return 2
    # Imported after the check, because these modules import libcst, which is an optional dependency.
    from .migrating import migrated
    from .project import Project
    from .table import table
    from .writing import diff, write

    try:
        project = Project.read(options.paths, options.exclude)
    except OSError as error:
        print(f"weft migrate: {error}", file=sys.stderr)
        return 2
    done = migrated(project, (options.library,) if options.library else LIBRARIES)
    for path, (before, after) in done.files.items():
        print(diff(_shown(path).lstrip("/"), before, after), end="")
    for finding in sorted(done.findings):
        print(finding.shown(f"{_shown(finding.file)}:{finding.line}"), file=sys.stderr)
    if done.findings:
        print(f"\n{table(done.findings)}\n", file=sys.stderr)
    if options.write:
        try:
            write(done.files)
        except OSError as error:
            print(f"weft migrate: nothing is written: {error}", file=sys.stderr)
            return 2
    files, findings = len(done.files), len(done.findings)
    verb = "changed" if options.write else "to change (--write changes them)"
    print(f"{files} file{'s' * (files != 1)} {verb}, {findings} place{'s' * (findings != 1)} listed", file=sys.stderr)
    return 0


def _shown(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path.as_posix()
