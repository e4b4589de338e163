"""What a folder holds beside right programs does not end the command; errors speak in the words of annotations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from weft.typecheck.command.linter import check

RIGHT = """
from jaxtyping import Array, Float

def right(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x
"""
TORCH = """
import torch
from jaxtyping import Float

def of_torch(x: Float[torch.Tensor, "n"]) -> Float[torch.Tensor, "n"]:
    return x
"""


def test_torch_code_is_called_that_where_torch_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("class Tensor: ...\n")
    (tmp_path / "of_torch.py").write_text(TORCH)
    monkeypatch.chdir(tmp_path)
    try:
        outcome = check(["of_torch.py"])
    finally:
        sys.modules.pop("torch", None)  # treescope would ask this one for its layers in a later test
    assert [line.message for line in outcome.lines] == ["not checked: it is torch code: weft checks JAX code"]
    assert outcome.exit_code == 0


CONTROL_FLOW = """
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

def scanned(x: Float[Array, "t enc"], h: Float[Array, "dec"]) -> Float[Array, "dec"]:
    return jax.lax.scan(lambda carry, row: ((row, carry[1]), None), (h, jnp.zeros(())), x)[0][0]

def branched(x: Float[Array, "enc"], y: Float[Array, "dec"], p: Float[Array, ""]) -> Float[Array, "enc"]:
    return jax.lax.cond(p > 0, lambda: {"a": x, "b": p}, lambda: {"a": y, "b": p})["a"]

def contracted(w: Float[Array, "enc k"], x: Float[Array, "dec"]) -> Float[Array, "k"]:
    return x @ w
"""
SAID = {
    "scanned": "carry component carry[0] has type float32[dec] but the corresponding output carry component has type "
    "float32[enc]",
    "branched": "at path ['a'] has type float32[enc] but the corresponding output of false_fun has type float32[dec]",
    "contracted": "got (dec,) and (enc,)",
}


def test_errors_of_jaxs_name_the_component_that_differs_and_its_dims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "flows.py").write_text(CONTROL_FLOW)
    monkeypatch.chdir(tmp_path)
    told = {line.name: line.message for line in check(["flows.py"]).lines}
    assert told.keys() == SAID.keys()
    for name, said in SAID.items():
        assert said in told[name]


def test_one_cause_is_told_once_without_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = RIGHT.replace("return x", 'raise TypeError(f"no {object()}")')
    (tmp_path / "raises.py").write_text(
        source.replace("right", "helper") + RIGHT.replace("return x", "return helper(x)")
    )
    monkeypatch.chdir(tmp_path)
    assert all(" at 0x" not in line.message for line in check(["raises.py"]).lines)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deep/inner", "deep.inner.right", "json.py", "."])
def test_folders_without_an_init_and_a_file_called_like_one_of_pythons(name: str, tmp_path: Path):
    (tmp_path / "deep" / "inner").mkdir(parents=True)
    for file in ("json.py", "deep/inner/right.py"):
        (tmp_path / file).write_text(RIGHT)
    # Without -P Python itself finds the json.py of the folder first; the command `weft` never looks there.
    command = [sys.executable, "-P", "-m", "weft.typecheck", "check", "--no-cache", name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{2 if name == '.' else 1} proved" in done.stdout


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path):
    (tmp_path / "wrong.py").write_text(RIGHT.replace("return x", "return x[None]") * 3)
    command = f"{sys.executable} -m weft.typecheck check --no-cache -v wrong.py | true"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
