"""What `weft check` costs a package of one's own: cold, unchanged, and after an edit, by processor time.

The package is a copy of `modules/dense` and `modules/norms` (with `--quick`, of one of their files) beside nothing, so
that an edit is of a file that others import, or of one that none does. An *edit* adds a statement to the body of one
function; functions are drawn with a fixed seed. What is compared is the processor time of the whole command, workers
included: on a busy machine the clock says little.
"""

from __future__ import annotations

import ast
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import weft
from harness import read_arguments, table

MODULES = Path(weft.__file__).resolve().parent / "modules"


def seconds_to_check(folder: Path, *options: str) -> float:
    """Seconds of processor time of `weft check` over a folder."""
    begin = os.times()
    command = [sys.executable, "-m", "weft.typecheck", "check", *options, "."]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if run.returncode > 1:  # 1: a copied layer that is no layer of weft's any more may fail, which takes time as well
        sys.exit(f"weft check failed with status {run.returncode}:\n{run.stdout}{run.stderr}")
    end = os.times()
    return end.children_user + end.children_system - begin.children_user - begin.children_system


def functions_of(folder: Path) -> list[tuple[Path, int, int]]:
    """File, line and indentation of the first statement of each function."""
    bodies = []
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                # Behind the docstring, if there is one; a body of nothing else has no line to edit.
                first = next((line for line in node.body if not isinstance(line, ast.Expr)), None)
                if first is not None:
                    bodies.append((path, first.lineno, first.col_offset))
    return bodies


def main() -> None:
    arguments = read_arguments(__doc__)
    edits = arguments.rounds or (1 if arguments.quick else 15)
    with tempfile.TemporaryDirectory() as name:
        package = Path(name) / "layers"
        if arguments.quick:
            package.mkdir()
            (package / "__init__.py").touch()
            shutil.copy(MODULES / "dense" / "linear.py", package)
        else:
            for room in ("dense", "norms"):
                shutil.copytree(MODULES / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))
            (package / "__init__.py").touch()
            for path in package.rglob("*.py"):
                text = path.read_text()
                for room in ("dense", "norms"):
                    text = text.replace(f"weft.modules.{room}", f"layers.{room}")
                path.write_text(text)
        uncached = seconds_to_check(Path(name), "--no-cache")
        cold = seconds_to_check(Path(name))
        unchanged = seconds_to_check(Path(name))
        draw = random.Random(0)
        edited: list[float] = []
        for path, line, column in draw.sample(functions_of(package), edits):
            before = path.read_text()
            lines = before.splitlines(keepends=True)
            lines.insert(line - 1, f"{' ' * column}_ = {len(edited)}\n")
            path.write_text("".join(lines))
            edited.append(seconds_to_check(Path(name)))
            path.write_text(before)
            if len(edited) < edits:
                seconds_to_check(Path(name))  # its verdicts are kept again before the next edit
    rows = [
        ("cold, --no-cache", uncached),
        ("cold", cold),
        ("unchanged", unchanged),
        (f"after an edit of one function, median of {edits}", statistics.median(edited)),
        (f"after an edit of one function, most of {edits}", max(edited)),
    ]
    print("\n### `weft check` of a package of weft's layers: seconds of processor\n")
    print(table(("command", "seconds", "of cold"), [(row, f"{s:.1f}", f"{s / cold:.2f}") for row, s in rows]))


if __name__ == "__main__":
    main()
