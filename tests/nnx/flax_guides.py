"""The code cells of flax's published guides, run over `weft.nnx`: `make flax-guides`.

The guides are the notebooks of flax's source archive at the pinned version, kept beside its tests (`tests/suites.py`).
What counts is each cell that runs under flax itself in this environment; a cell that ends in an error under weft is
printed with that error's first line, and makes the exit status 1. How many print the same is said, too. A guide that
imports what is not installed here, which is mostly what fetches its data, is left out with the reason. What became of
the cells under flax is kept beside the guide.

    python tests/nnx/flax_guides.py                     all of them
    python tests/nnx/flax_guides.py demo surgery        some, by name
    python tests/nnx/flax_guides.py demo --show         with what they print otherwise
    python tests/nnx/flax_guides.py --fresh             run them under flax again, too
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import TypedDict

HERE = Path(__file__).resolve()
LIMIT = 1800  # seconds for one guide: some train a model, and the machine may be busy
CELL_LIMIT = 600  # seconds for one cell
# What differs in text between two runs of one library, too.
PASSING = re.compile(r"0x[0-9a-f]+|\x1b\[[0-9;]*m|\d+(\.\d+)? ?(ms|us|µs|ns|s|it/s)\b|[\d.,]+it/s|\d+%")
NUMBER = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?")
# The module that a class comes from is the library's own.
MODULE = re.compile(r"\b(?:flax|weft)\.nnx\.(?:\w+\.)*(?=\w+'>)")


class Ran(TypedDict):
    """What became of one cell."""

    source: str
    error: str | None
    printed: str


def cells(guide: Path) -> list[str]:
    """The code of a notebook, cell by cell; commands for the shell and for IPython are comments."""
    sources = [
        "".join(cell["source"]) for cell in json.loads(guide.read_text())["cells"] if cell["cell_type"] == "code"
    ]
    return [re.sub(r"^(\s*)([!%].*)$", r"\1pass  # \2", source, flags=re.MULTILINE) for source in sources]


def missing(guide: Path) -> list[str]:
    """What a guide imports that is not installed here."""
    imported = re.findall(r"^\s*(?:import|from) (\w+)", "\n".join(cells(guide)), re.MULTILINE)
    return sorted({name for name in imported if importlib.util.find_spec(name) is None})


def _out_of_time(*_: object) -> None:
    raise TimeoutError(f"took more than {CELL_LIMIT} s")


def run_cells(guide: Path, report: Path) -> None:
    """Runs a guide in this process, and writes what became of each cell so far after each one."""
    import linecache

    main = types.ModuleType("__main__")
    vars(main)["display"] = lambda *shown, **_: print(*map(repr, shown), sep="\n")
    sys.modules["__main__"] = main
    signal.signal(signal.SIGALRM, _out_of_time)
    done: list[Ran] = []
    for number, source in enumerate(cells(guide)):
        file, printed, error = f"<cell {number}>", io.StringIO(), None
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        signal.alarm(CELL_LIMIT)
        try:
            with contextlib.redirect_stdout(printed):
                body = ast.parse(source).body
                last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
                exec(compile(ast.Module(body, []), file, "exec"), vars(main))
                if last is not None:
                    shown = eval(compile(ast.Expression(last.value), file, "eval"), vars(main))
                    print("" if shown is None else repr(shown))
        except (Exception, SystemExit) as raised:
            error = f"{type(raised).__name__}: {raised}"
        finally:
            signal.alarm(0)
        done.append({"source": source, "error": error, "printed": printed.getvalue()})
        report.write_text(json.dumps(done))


def run(guide: Path, report: Path, *hook: str) -> list[Ran]:
    """What became of each cell, in a process of its own; fewer than there are if it took too long."""
    report.unlink(missing_ok=True)
    command = [sys.executable, "-W", "ignore", *hook, str(HERE), "--cells", str(report), str(guide)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "MPLBACKEND": "agg"}
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, cwd=guide.parent, env=environment, timeout=LIMIT, capture_output=True)
    return json.loads(report.read_text()) if report.exists() else []


def under_flax(guide: Path, *, fresh: bool) -> list[Ran]:
    """What became of each cell under flax itself: found once, if all were reached."""
    report = guide.with_suffix(".flax.json")
    if not fresh and report.exists():
        recorded = json.loads(report.read_text())
        if [cell["source"] for cell in recorded] == cells(guide):
            return recorded
    return run(guide, report)


def are_alike(ours: str, theirs: str) -> bool:
    """Whether two texts are the same, but for rounding, addresses, times and the library's name."""
    ours, theirs = (PASSING.sub("#", MODULE.sub("", text)).replace("flax.nnx", "weft.nnx") for text in (ours, theirs))
    numbers = zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=False)
    return NUMBER.sub("#", ours).split() == NUMBER.sub("#", theirs).split() and all(
        abs(float(our) - float(their)) <= 1e-3 * max(1, abs(float(their))) for our, their in numbers
    )


def main() -> int:
    """Runs, compares and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("guides", nargs="*", help="names of guides, by default all")
    parser.add_argument("--archive", type=Path, help="flax's source archive, if it is not to be downloaded")
    parser.add_argument("--show", action="store_true", help="show what is printed otherwise")
    parser.add_argument("--fresh", action="store_true", help="run the cells under flax again")
    parser.add_argument("--cells", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cells is not None:
        run_cells(Path(options.guides[0]), options.cells)
        return 0
    sys.path.insert(0, str(HERE.parents[1]))
    from suites import fetch, pinned_version

    docs = fetch("flax", pinned_version("flax"), "docs_nnx", options.archive)
    counted = passed = same = 0
    for guide in sorted(docs.rglob("*.ipynb")):
        if options.guides and guide.stem not in options.guides:
            continue
        if absent := missing(guide):
            print(f"{guide.stem}: left out, for it needs {', '.join(absent)}", flush=True)
            continue
        theirs = under_flax(guide, fresh=options.fresh)
        ours = run(guide, guide.with_suffix(".weft.json"), "-m", "weft.nnx")
        numbers = [number for number, cell in enumerate(theirs) if cell["error"] is None]
        print(f"{guide.stem}: {len(numbers)} of {len(cells(guide))} cells run under flax", flush=True)
        counted += len(numbers)
        for number in numbers:
            error = (
                ours[number]["error"] if number < len(ours) else f"did not run: the process ended, or took {LIMIT} s"
            )
            if error is not None:
                print(f"  FAILED  cell {number}: {error.splitlines()[0]}", flush=True)
                continue
            passed += 1
            mine, real = ours[number]["printed"], theirs[number]["printed"]
            if are_alike(mine, real):
                same += 1
            elif options.show:
                print(f"  cell {number} prints otherwise:")
                print(*list(difflib.unified_diff(real.splitlines(), mine.splitlines(), "flax", "weft", n=0)), sep="\n")
    print(f"{passed}/{counted} of the cells of flax's guides run on weft.nnx; {same} of them print the same")
    return int(passed < counted)


if __name__ == "__main__":
    sys.exit(main())
