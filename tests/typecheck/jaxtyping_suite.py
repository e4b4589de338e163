"""jaxtyping's own tests, run over weft's checker: `make jaxtyping-suite`.

The tests come from the last source archive of jaxtyping's that holds them. What counts is what passes under the version
that `constraints.txt` pins, with beartype (`tests/suites.py`). That archive leaves out their fixtures and the modules
that they import under the hook: `for_jaxtyping/` stands in for these. `docs/field.md` lists what is known to fail.

Each runs through every door by which weft checks a function: `contract`, the import hook, `weft.jit`, and a record's
method, where the functions of the tests get a `self` in front.

    python tests/typecheck/jaxtyping_suite.py                       all of them
    python tests/typecheck/jaxtyping_suite.py test_array.py         one file, or several
    python tests/typecheck/jaxtyping_suite.py --archive ARCHIVE     an archive that is there already
    python tests/typecheck/jaxtyping_suite.py --fresh               run them under jaxtyping again, too
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from suites import Suite, cache, command_line, fetch  # noqa: E402

LAST_WITH_TESTS = "0.2.4"
STAND_INS = Path(__file__).parent / "for_jaxtyping"
# `test_import_hook.py` imports one of these in each of its tests.
HOOKED = ("typeguard", "beartype", "transitive", "broken_checker")
# By which door weft checks the functions of the tests; the last in a copy, where they are methods.
DOORS = ("contract", "hook", "jit", "method")
# What `weft.jit` makes of numbers before any check: as under JAX's own, they are arrays.
TRACED = {
    "test_array.py::test_nested_jaxtyped": "under `jit` a bool is traced, and the test's function branches on it",
    "test_pytree.py::test_pytree_array": "under `jit` a number is an array, which the test expects to be refused",
}


def run_by(checker: str) -> tuple[list[str], dict[str, str]]:
    """The command and the environment for the tests over a checker; their package has the name of one of Python's."""
    paths = [str(folder_of(checker)), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {"CHECKED_BY": checker, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return [sys.executable], environment


def folder_of(checker: str) -> Path:
    """Where the tests over a checker lie."""
    return cache() / f"jaxtyping-{LAST_WITH_TESTS}{'-as-methods' if checker == 'method' else ''}"


def as_methods(unpacked: Path) -> Path:
    """A copy of the tests in which each checked function takes a `self`."""
    copy = folder_of("method")
    shutil.copytree(unpacked, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (copy / "test").glob("test_*.py"):
        file.write_text(re.sub(r"(@typecheck(?:ed)?\n\s+def \w+\()", r"\1self, ", file.read_text()))
    return copy


def fetched(archive: Path | None) -> Path:
    """The folder with the tests, and with what stands in for the files that the archive leaves out."""
    tests = fetch("jaxtyping", LAST_WITH_TESTS, "test", archive)
    (tests / "__init__.py").touch()
    shutil.copy(STAND_INS / "fixtures.py", tests / "conftest.py")
    shutil.copy(STAND_INS / "helpers.py", tests)
    for name in HOOKED:
        shutil.copy(STAND_INS / "hooked.py", tests / f"import_hook_tester_{name}.py")
    return tests.parent


def by(door: str) -> Suite:
    """The tests by one door."""
    return Suite(
        library="jaxtyping",
        part="test",
        runs=run_by(door),
        under=run_by("jaxtyping"),
        listed=(ROOT / "docs" / "field.md", "## jaxtyping's own tests"),
        beside=("jaxtyping", "beartype"),
        how=f"weft's {door}",
        changed=as_methods if door == "method" else lambda unpacked: unpacked,
        apart=TRACED if door == "jit" else {},
    )


if __name__ == "__main__":
    first, *others = map(by, DOORS)
    sys.exit(command_line(__doc__, first, fetched, jobs=1, others=others))
