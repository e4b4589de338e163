"""The pre-commit hooks and the GitHub action run `weft check`, as their files say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[3]
HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
ACTION = yaml.safe_load((ROOT / ".github" / "actions" / "check" / "action.yml").read_text())
WRONG = """from jaxtyping import Array, Float
def f(x: Float[Array, "n"]) -> Float[Array, "n n"]:
    return x
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment with `weft` on the path, and a project in the current folder."""
    command = tmp_path / "bin" / "weft"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m weft.typecheck "$@"\n')
    command.chmod(0o755)
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "pyproject.toml").write_text('[tool.weft.check]\npaths = ["wrong.py"]\n')
    return {**os.environ, "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}


def run(command: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(["bash", "-e", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_hooks_are_as_pre_commit_wants_them():
    assert sorted(HOOKS) == ["weft-check", "weft-check-all"]
    for hook in HOOKS.values():
        assert {"id", "name", "entry", "language", "types", "require_serial"} <= set(hook)
        # Another environment would lack what the checked files import.
        assert hook["language"] == "system"


@pytest.mark.slow
def test_a_hook_fails_where_a_contract_does(tmp_path: Path, environment: dict[str, str]):
    code, said = run(f"{HOOKS['weft-check']['entry']} wrong.py", tmp_path, environment)
    assert (code, "wrong.py:2: f: " in said) == (1, True)
    assert run(HOOKS["weft-check-all"]["entry"], tmp_path, environment) == (1, said)


@pytest.mark.slow
def test_the_action_annotates_what_fails(tmp_path: Path, environment: dict[str, str]):
    *_, step = ACTION["runs"]["steps"]
    assert set(step["env"].values()) == {f"${{{{ inputs.{name} }}}}" for name in ACTION["inputs"]}
    inputs = {"OPTIONS": "--strict", "PATHS": "wrong.py"}
    code, said = run(step["run"], tmp_path, {**environment, **inputs})
    assert code == 1
    assert said.startswith("::error file=wrong.py,line=2,title=f::")
    by_table = run(step["run"], tmp_path, {**environment, "OPTIONS": "", "PATHS": ""})
    assert by_table == (code, said)
