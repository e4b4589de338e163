"""Transforms keep the wrapped function's signature for static checkers: pyright's own answer, line by line.

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
SAMPLE = ROOT / "tests" / "typing_samples" / "signatures.py"
PACKAGES = ("core", "transforms", "modules", "typecheck", "nnx")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """What pyright says, by line."""
    folder = tmp_path_factory.mktemp("typing")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / "weft" / package, ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copy(ROOT / "__init__.py", folder / "weft")
    (folder / "weft" / "py.typed").touch()
    shutil.copy(SAMPLE, folder)
    (folder / "pyrightconfig.json").write_text(json.dumps({"extraPaths": ["."], "include": ["signatures.py"]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    said: dict[int, str] = {}
    for one in report["generalDiagnostics"]:
        line = one["range"]["start"]["line"] + 1
        said[line] = f"{said[line]}\n{one['message']}" if line in said else one["message"]
    return said


def lines(pattern: str) -> list[tuple[int, str]]:
    found = enumerate(SAMPLE.read_text().splitlines(), 1)
    return [(number, match[1]) for number, line in found if (match := re.search(pattern, line))]


def test_the_types_that_are_revealed(answers: dict[int, str]):
    wanted = lines(r"reveal_type\(.*\)  # (.*)$")
    assert len(wanted) > 20
    revealed = {number: answers.get(number, "").rpartition('is "')[2].rstrip('"') for number, _ in wanted}
    assert revealed == dict(wanted)


def test_the_calls_that_are_refused(answers: dict[int, str]):
    wanted = lines(r"# error: (.*)$")
    assert [(number, text) for number, text in wanted if text not in answers.get(number, "")] == []


def test_nothing_else_is_complained_of(answers: dict[int, str]):
    expected = {number for number, _ in lines(r"(reveal_type\(.*\)  #|# error:)")}
    assert {number: text for number, text in answers.items() if number not in expected} == {}
