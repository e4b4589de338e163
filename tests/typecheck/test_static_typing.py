"""User code written with weft passes pyright strict and mypy strict, and they refuse what is wrong.

Static checkers do not follow an editable install, so they are shown a copy of the packages, as a wheel has them.
"""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
EXAMPLE = HERE / "static_example"
PACKAGES = ("core", "transforms", "modules", "typecheck", "nnx")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / "installed" / "weft" / package, ignore=shutil.ignore_patterns("*.pyc"))
    for file in ("__init__.py", "py.typed"):
        shutil.copy(ROOT / file, folder / "installed" / "weft" / file)
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    # `jnp.ones` is partly unknown to strict checking as JAX ships it, whoever calls it.
    settings = {"typeCheckingMode": "strict", "reportUnknownMemberType": False}
    settings |= {"extraPaths": ["installed"], "exclude": ["installed"]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    (folder / "mypy.ini").write_text(
        "[mypy]\nstrict = True\nmypy_path = $MYPY_CONFIG_FILE_DIR/installed\n[mypy-weft.*]\nfollow_imports = silent\n"
    )
    return folder


def pyright(project: Path, target: str) -> list[tuple[int, str]]:
    errors = [error for error in _pyright(project) if Path(error["file"]).relative_to(project).parts[0] == target]
    return [(error["range"]["start"]["line"] + 1, error["message"]) for error in errors]


@functools.cache
def _pyright(project: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] > 2
    return report["generalDiagnostics"]


def mypy(project: Path, target: str) -> list[tuple[int, str]]:
    errors = [error for error in _mypy(project) if Path(error[0]).parts[0] == target]
    return [(int(line), message) for _, line, message in errors]


@functools.cache
def _mypy(project: Path) -> list[tuple[str, str, str]]:
    command = [sys.executable, "-m", "mypy", "--python-executable", sys.executable, "--no-error-summary"]
    targets = ["ensemble", "nnx_program.py", "wrong.py"]
    done = subprocess.run([*command, *targets], cwd=project, capture_output=True, text=True)
    errors = re.findall(r"^(\S+\.py):(\d+): error: (.*)$", done.stdout, flags=re.M)
    assert done.returncode == (1 if errors else 0), done.stdout + done.stderr
    return errors


@pytest.mark.parametrize("checker", [pyright, mypy])
@pytest.mark.parametrize("target", ["ensemble", "nnx_program.py"])
def test_the_example_passes(project, checker, target):
    assert checker(project, target) == []


@pytest.mark.parametrize("checker", [pyright, mypy])
def test_wrong_lines_are_refused(project, checker):
    lines = (EXAMPLE / "wrong.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if "  # " in line}
    assert {line for line, _ in checker(project, "wrong.py")} == wrong


def test_the_examples_run():
    command = [sys.executable, "-c", "import ensemble, nnx_program; nnx_program.main(); print(ensemble.evaluate())"]
    done = subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
