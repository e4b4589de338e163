"""The digits example: what it writes, what it reaches, and how it fails."""

import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "digits.py"


def run(*arguments, cwd, **variables):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", **variables}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def one_epoch(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    result = run("--epochs", 1, "--out", folder / "made" / "here", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder / "made" / "here", result.stdout


def test_it_writes_a_picture_and_a_checkpoint_that_it_compared(one_epoch):
    folder, output = one_epoch
    assert sorted(os.listdir(folder)) == ["digits.png", "digits.safetensors"]
    assert matplotlib.image.imread(folder / "digits.png").std() > 0.1
    assert "loaded again, equal bit for bit" in output
    assert re.search(r"loss \d\.\d+ +accuracy \d+\.\d% +held out \d+\.\d%", output)


def test_it_goes_on_from_a_checkpoint_under_strict_contracts(one_epoch, tmp_path):
    first = float(re.search(r"held-out accuracy ([\d.]+)%", one_epoch[1])[1])
    options = ["--epochs", 1, "--seed", 5, "--resume", one_epoch[0] / "digits.safetensors", "--out", "b"]
    result = run(*options, cwd=tmp_path, WEFT_TYPECHECK="strict")
    assert result.returncode == 0, result.stderr
    assert float(re.search(r"held-out accuracy ([\d.]+)%", result.stdout)[1]) > first
    assert (tmp_path / "b" / "digits.safetensors").exists()


def damaged(folder, one_epoch):
    path = folder / "damaged"
    path.write_bytes((one_epoch[0] / "digits.safetensors").read_bytes()[:5000])
    return ["--resume", path, "--out", folder / "out"], "digits: .*damaged is damaged: "


def not_a_checkpoint(folder, one_epoch):
    (folder / "text").write_text("hello")
    return ["--resume", folder / "text", "--out", folder / "out"], "digits: .*text is not a checkpoint"


def missing(folder, one_epoch):
    return ["--resume", folder / "nowhere", "--out", folder / "out"], "digits: .*No such file.*nowhere"


def out_is_a_file(folder, one_epoch):
    (folder / "file").write_text("hello")
    return ["--out", folder / "file"], "digits: .*File exists.*file"


@pytest.mark.parametrize("failure", [damaged, not_a_checkpoint, missing, out_is_a_file])
def test_a_wrong_path_or_checkpoint_is_one_line_and_writes_nothing(failure, one_epoch, tmp_path):
    arguments, message = failure(tmp_path, one_epoch)
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 1
    assert re.fullmatch(message + ".*\n", result.stderr)
    assert not (tmp_path / "out").exists()


def test_help_and_bad_options(tmp_path):
    helped = run("--help", cwd=tmp_path)
    assert helped.returncode == 0
    assert all(option in helped.stdout for option in ("--epochs", "--seed", "--out", "--resume"))
    refused = run("--epochs", 0, cwd=tmp_path)
    assert refused.returncode == 2
    assert "--epochs must be at least 1" in refused.stderr


@pytest.mark.slow
def test_the_full_run_reaches_97_percent(tmp_path):
    result = run("--out", "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert float(re.search(r"held-out accuracy ([\d.]+)%", result.stdout)[1]) >= 97
