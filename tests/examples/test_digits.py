"""The digits example: what it writes, what it reaches, and how it fails."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import matplotlib.image
import pytest
import weft

SCRIPT = Path(__file__).parents[2] / "examples" / "digits.py"


def run(*arguments, cwd, **variables):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    # As the tests run, but for their eight devices.
    flags = " ".join(flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, **variables}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def accuracy_of(output):
    return float(re.search(r"held-out accuracy ([\d.]+)%", output)[1])


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    result = run("--out", folder / "made" / "here", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder / "made" / "here", result.stdout


@pytest.mark.slow
def test_it_writes_a_picture_and_a_checkpoint_that_it_compared(whole_run):
    folder, output = whole_run
    assert sorted(os.listdir(folder)) == ["digits.png", "digits.safetensors"]
    assert matplotlib.image.imread(folder / "digits.png").std() > 0.1
    assert "loaded again, equal bit for bit" in output
    assert re.search(r"loss \d\.\d+ +accuracy \d+\.\d% +held out \d+\.\d%", output)


@pytest.mark.slow
def test_the_full_run_reaches_97_percent(whole_run):
    assert accuracy_of(whole_run[1]) >= 97


@pytest.mark.slow
def test_it_goes_on_from_a_checkpoint_under_strict_contracts(whole_run, tmp_path):
    options = ["--epochs", 1, "--seed", 5, "--resume", whole_run[0] / "digits.safetensors", "--out", "b"]
    result = run(*options, cwd=tmp_path, WEFT_TYPECHECK="strict")
    assert result.returncode == 0, result.stderr
    assert accuracy_of(result.stdout) >= 95  # one epoch from the start reaches 90 at most
    assert (tmp_path / "b" / "digits.safetensors").exists()


def damaged(folder):
    weft.save_checkpoint(folder / "whole", weft.Linear(2, 3, key=jax.random.key(0)))
    (folder / "damaged").write_bytes((folder / "whole").read_bytes()[:-5])
    return ["--resume", folder / "damaged", "--out", folder / "out"], "digits: .*damaged is damaged: "


def not_a_checkpoint(folder):
    (folder / "text").write_text("hello")
    return ["--resume", folder / "text", "--out", folder / "out"], "digits: .*text is not a checkpoint"


def missing(folder):
    return ["--resume", folder / "nowhere", "--out", folder / "out"], "digits: there is no checkpoint at .*nowhere"


def out_is_a_file(folder):
    (folder / "file").write_text("hello")
    return ["--out", folder / "file"], "digits: .*File exists.*file"


@pytest.mark.slow
@pytest.mark.parametrize("failure", [damaged, not_a_checkpoint, missing, out_is_a_file])
def test_a_wrong_path_or_checkpoint_is_one_line_and_writes_nothing(failure, fails, tmp_path):
    arguments, message = failure(tmp_path)
    assert re.fullmatch(message + ".*", fails(*arguments))
    assert not (tmp_path / "out").exists()


def test_help_and_bad_options(fails, capsys):
    assert fails("--help") == 0
    helped = capsys.readouterr().out
    assert all(option in helped for option in ("--epochs", "--seed", "--out", "--resume"))
    assert fails("--epochs", 0) == 2
    assert "--epochs must be at least 1" in capsys.readouterr().err
