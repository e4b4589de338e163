"""Files and folders whose names no `import` statement takes are judged like any other, and their programs run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from weft.typecheck.command.front import main
from weft.typecheck.command.linter import judge_here
from weft.typecheck.command.units import unit_of

WRONG = """
import jax.numpy as jnp
from jaxtyping import Array, Float

def product(x: Float[Array, "n m"], y: Float[Array, "n m"]) -> Float[Array, "n n"]:
    return x @ y
"""

FILES = ["01_attention.py", "my-file.py", "class.py", "v1.2.py"]
FILES += ["01-intro/main.py", "in/x.py", "p/02-x/z.py", "p/v1.2.py"]


@pytest.fixture
def tutorials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(WRONG)
    for name in ("p", "p/02-x"):
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_a_failure_fails_whatever_its_file_is_called(tutorials: Path, capsys: pytest.CaptureFixture[str], name: str):
    assert main(["check", name, "--no-cache", "--format", "json"], judge=judge_here) == 1
    (finding,) = [line for line in json.loads(capsys.readouterr().out)["findings"] if line["level"] == "error"]
    assert "dot_general requires contracting dimensions" in finding["message"]


@pytest.mark.parametrize("name", FILES)
def test_the_program_of_a_failure_runs_beside_its_file(tutorials: Path, capsys: pytest.CaptureFixture[str], name: str):
    assert main(["check", name, "--no-cache", "-v"], judge=judge_here) == 1
    lines = capsys.readouterr().out.splitlines()
    program = "\n".join(line.removeprefix("    ") for line in lines if line.startswith("    "))
    root = unit_of(Path(name)).root
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": root}
    )
    assert ran.returncode == 1
    assert "dot_general requires contracting dimensions" in ran.stderr
