"""A checkpoint is inspected without the tree that it was saved from, and without reading its arrays."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import weft
from weft.modules import CheckpointError, Checkpoints, inspect_checkpoint
from weft.modules.checkpoints import inspecting

LAYER = weft.Linear(2, 3, key=jax.random.key(0), use_bias=False)
TREE: dict[str, Any] = {
    "net": [LAYER, jax.nn.relu],
    "key": jax.random.key(0),
    "step": 7,
    "x": jnp.ones(3, jnp.bfloat16),
}
ARRAYS = {
    "key": ("key<fry>", ()),
    "net[0].kernel": ("float32", (2, 3)),
    "step": ("Python int", ()),
    "x": ("bfloat16", (3,)),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Checkpoints(tmp_path / "run") as checkpoints:
        checkpoints.save(1, {"old": np.ones(2)})
        checkpoints.save(2, TREE)
    return tmp_path / "run"


def test_files_steps_and_runs_tell_the_same(tmp_path: Path, run: Path):
    weft.save_checkpoint(tmp_path / "file", TREE)
    for place in (tmp_path / "file", run, run / "2", str(run)):
        contents = inspect_checkpoint(place)
        assert contents.arrays == ARRAYS
        assert contents.configuration["net[0]"] == "weft:Linear"
        assert contents.configuration["net[0].dtype"] == "None"
        assert contents.configuration["net[1]"] == "jax._src.nn.functions:relu"
    assert contents.place == f"{run}/2"
    assert inspect_checkpoint(run, 1).arrays == {"old": ("float64", (2,))}


def test_checkpoints_of_other_programs_have_no_configuration(tmp_path: Path):
    with ocp.StandardCheckpointer() as writer:
        writer.save(tmp_path / "theirs", {"layer": {"kernel": jnp.ones((2, 3))}})
    assert inspect_checkpoint(tmp_path / "theirs")[1:] == ({"layer.kernel": ("float32", (2, 3))}, {})


def test_no_array_is_read(tmp_path: Path, run: Path):
    shutil.rmtree(run / "2" / "arrays" / "ocdbt.process_0")
    assert inspect_checkpoint(run).arrays == ARRAYS


def test_what_is_damaged_or_not_there_is_an_error(tmp_path: Path, run: Path):
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 9\n  at: .*run holds steps"):
        inspect_checkpoint(run, 9)
    (tmp_path / "file").write_bytes(b"nonsense" * 9)
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        inspect_checkpoint(tmp_path / "file")


def test_the_command_prints_a_table_and_ends_with_2_if_there_is_none(run: Path, capsys: pytest.CaptureFixture[str]):
    assert inspecting.main([str(run)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"4 arrays in {run}/2\n")
    assert "\nnet[0].kernel     float32[2,3]\n" in printed
    assert "\nnet[0]            weft:Linear\n" in printed
    assert inspecting.main([str(run), "--step", "1"]) == 0
    assert "old     float64[2]" in capsys.readouterr().out
    assert inspecting.main([f"{run}s"]) == 2
    assert "did you mean" in capsys.readouterr().err
