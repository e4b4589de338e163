"""jaxtyping's own tests, run over weft's checker: `make jaxtyping-suite`.

The tests come from the last source archive of jaxtyping's that holds them. What counts is what passes under the version
that `constraints.txt` pins, with beartype (`tests/suites.py`). That archive leaves out their fixtures and the modules
that they import under the hook: `for_jaxtyping/` stands in for these. `docs/field.md` lists what is known to fail.

    python tests/typecheck/jaxtyping_suite.py                       all of them
    python tests/typecheck/jaxtyping_suite.py test_array.py         one file, or several
    python tests/typecheck/jaxtyping_suite.py --archive ARCHIVE     an archive that is there already
    python tests/typecheck/jaxtyping_suite.py --fresh               run them under jaxtyping again, too
"""

from __future__ import annotations

import os
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


def run_by(checker: str) -> tuple[list[str], dict[str, str]]:
    """The command and the environment for the tests over a checker; their package has the name of one of Python's."""
    found = [str(cache() / f"jaxtyping-{LAST_WITH_TESTS}"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {"CHECKED_BY": checker, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, found))}
    return [sys.executable], environment


def fetched(archive: Path | None) -> Path:
    """The folder with the tests, and with what stands in for the files that the archive leaves out."""
    tests = fetch("jaxtyping", LAST_WITH_TESTS, "test", archive)
    (tests / "__init__.py").touch()
    shutil.copy(STAND_INS / "fixtures.py", tests / "conftest.py")
    shutil.copy(STAND_INS / "helpers.py", tests)
    for name in HOOKED:
        shutil.copy(STAND_INS / "hooked.py", tests / f"import_hook_tester_{name}.py")
    return tests.parent


SUITE = Suite(
    library="jaxtyping",
    part="test",
    runs=run_by("weft"),
    under=run_by("jaxtyping"),
    listed=(ROOT / "docs" / "field.md", "## jaxtyping's own tests"),
    beside=("jaxtyping", "beartype"),
)

if __name__ == "__main__":
    sys.exit(command_line(__doc__, SUITE, fetched, jobs=1))
