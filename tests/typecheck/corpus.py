"""The corpus of `bugs/`: each file is a right program, and says by `# bug:` how it would have been wrong.

A line that ends in `# bug: <line>` stands, in the wrong version, as `<line>`. Every program has an `entry` (what is
verified) and a `sample` (a call on concrete arrays).

    python tests/typecheck/corpus.py [NAME...]

prints how many of the wrong versions `verify`, jaxtyping with beartype, jaxtyc and JAX alone find, with the alarms that
each raises on right ones. jaxtyc is the one on `PATH`: it has an environment of its own, in which weft and beartype are
importable, too (`pip install 'jaxtyc[cpu,equinox,einops]' beartype`).
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import jaxtyping

VERSIONS = ("right", "wrong")
PROGRAMS = sorted((Path(__file__).parent / "bugs").glob("*.py"))
_MARK = re.compile(r"^(\s*)\S.*?  # bug: (.*)$", re.M)
_numbers = itertools.count()


def source(program: Path, version: str) -> str:
    """The text of a version, `right` or `wrong`."""
    text = program.read_text()
    if version == "wrong":
        return _MARK.sub(r"\1\2", text)
    return re.sub(r"  # bug: .*$", "", text, flags=re.M)


def write(program: Path, version: str, folder: Path) -> Path:
    """A version as a file of its own."""
    path = folder / version / program.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source(program, version))
    return path


def load(path: Path) -> ModuleType:
    """Imports a file under a name that nothing else has."""
    name = f"corpus_{path.stem}_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found_by_jaxtyping(path: Path) -> bool:
    """Whether jaxtyping and beartype (or JAX itself) object when a file's sample runs, everything in it decorated."""
    name = f"{path.parent.name}_{path.stem}"
    sys.path.insert(0, str(path.parent))
    try:
        renamed = path.with_name(f"{name}.py")
        renamed.write_text(path.read_text())
        with jaxtyping.install_import_hook(name, "beartype.beartype"):
            try:
                importlib.import_module(name).sample()
            except Exception:  # that it objects is the measurement, in whichever words
                return True
        return False
    finally:
        sys.path.remove(str(path.parent))
        renamed.unlink()


def found_by_jaxtyc(paths: list[Path]) -> set[Path]:
    """The files that `jaxtyc check` finds fault with; one that it crashes on spoils the rest, so that is left out."""
    command = ["jaxtyc", "check", "--format", "concise", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Traceback" in done.stderr:
        half = len(paths) // 2
        return found_by_jaxtyc(paths[:half]) | found_by_jaxtyc(paths[half:]) if half else set()
    return {path for path in paths if re.search(rf"^{re.escape(str(path))}:\d+.*error", done.stdout, re.M)}


@dataclass(frozen=True)
class Row:
    """Who objects to a version of a program: verify's failures, its warnings, jaxtyping with beartype, jaxtyc, JAX."""

    fails: bool
    warns: bool
    jaxtyping: bool
    jaxtyc: bool
    jax: bool


def runs(path: Path) -> bool:
    """Whether a file's sample runs without an error."""
    try:
        load(path).sample()
    except Exception:  # that it objects is the measurement, in whichever words
        return False
    return True


def measure(programs: list[Path], folder: Path) -> dict[tuple[str, str], Row]:
    """Everybody's verdict on both versions of some programs."""
    from weft.typecheck.proofs.prover import verify

    paths = {(program.stem, version): write(program, version, folder) for program in programs for version in VERSIONS}
    jaxtyc = found_by_jaxtyc(list(paths.values())) if shutil.which("jaxtyc") else set()
    rows: dict[tuple[str, str], Row] = {}
    for key, path in paths.items():
        report = verify(load(path).entry)
        rows[key] = Row(not report.ok, bool(report.warnings), found_by_jaxtyping(path), path in jaxtyc, not runs(path))
    return rows


def table(rows: dict[tuple[str, str], Row]) -> str:
    """The verdicts, counted."""
    columns = {
        "weft verify": lambda row: row.fails or row.warns,
        "weft verify, failures only": lambda row: row.fails,
        "jaxtyping + beartype on samples": lambda row: row.jaxtyping,
        "jaxtyc check": lambda row: row.jaxtyc,
        "JAX alone": lambda row: row.jax,
    }
    lines = [f"{'':32}{'wrong found':>12}{'false alarms':>14}   of {len(rows) // 2} programs"]
    for name, objects in columns.items():
        wrong, right = (sum(objects(row) for (_, one), row in rows.items() if one == v) for v in ("wrong", "right"))
        lines.append(f"{name:32}{wrong:>12}{right:>14}")
    return "\n".join(lines)


if __name__ == "__main__":
    chosen = [program for program in PROGRAMS if not sys.argv[1:] or program.stem in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as kept:
        print(table(measure(chosen, Path(kept))))
