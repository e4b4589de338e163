"""What static checkers see of transforms and combinators: pyright's own answer, line by line.

Static checkers do not follow an editable install, so they are shown a copy of the packages, as a wheel has them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "tests" / "typing_samples").glob("*.py"))
PACKAGES = ("core", "transforms", "modules", "typecheck", "nnx", "insight")


Line = tuple[str, int]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[Line, str]:
    """What pyright says, by file and line."""
    folder = tmp_path_factory.mktemp("typing")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / "weft" / package, ignore=shutil.ignore_patterns("*.pyc"))
    for file in [*ROOT.glob("*.py"), *ROOT.glob("*.pyi")]:
        shutil.copy(file, folder / "weft")
    (folder / "weft" / "py.typed").touch()
    for sample in SAMPLES:
        shutil.copy(sample, folder)
    names = [sample.name for sample in SAMPLES]
    (folder / "pyrightconfig.json").write_text(json.dumps({"extraPaths": ["."], "include": names}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(SAMPLES)
    said: dict[Line, str] = {}
    for diagnostic in report["generalDiagnostics"]:
        line = Path(diagnostic["file"]).name, diagnostic["range"]["start"]["line"] + 1
        said[line] = f"{said[line]}\n{diagnostic['message']}" if line in said else diagnostic["message"]
    return said


def lines(pattern: str) -> list[tuple[Line, str]]:
    rows = ((sample.name, row) for sample in SAMPLES for row in enumerate(sample.read_text().splitlines(), 1))
    return [((name, number), match[1]) for name, (number, line) in rows if (match := re.search(pattern, line))]


@pytest.mark.slow
def test_the_types_that_are_revealed(answers: dict[Line, str]):
    wanted = lines(r"reveal_type\(.*\)  # (.*)$")
    assert len(wanted) > 40
    revealed = {line: answers.get(line, "").rpartition('is "')[2].rstrip('"') for line, _ in wanted}
    assert revealed == dict(wanted)


@pytest.mark.slow
def test_the_calls_that_are_refused(answers: dict[Line, str]):
    wanted = lines(r"# error: (.*)$")
    assert [(line, text) for line, text in wanted if text not in answers.get(line, "")] == []


def test_nothing_else_is_complained_of(answers: dict[Line, str]):
    expected = {line for line, _ in lines(r"(reveal_type\(.*\)  #|# error:)")}
    assert {line: text for line, text in answers.items() if line not in expected} == {}
