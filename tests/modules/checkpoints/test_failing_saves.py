"""A save that fails is an error at the next call, and the exit code of a program that makes no further call."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
import weft
from weft.modules import CheckpointError, Checkpoints

START = """
    import atexit, gc, os, resource, signal, sys
    import numpy as np, weft

    folder = sys.argv[1]
    atexit.register(lambda: print("an earlier function at exit", flush=True))
    checkpoints = weft.Checkpoints(folder)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def save(step):
        checkpoints.save(step, {"w": np.random.rand(100_000)})

    def caught(call):
        try:
            call()
        except weft.CheckpointError as error:
            print(type(error.__cause__).__name__, str(error).replace("\\n", " "), flush=True)

    save(0)
    checkpoints.wait()
    limit(20_000)
    save(1)
"""
# What a program does after a save that fails for want of room, and what it prints.
TOLD: dict[str, tuple[str, int]] = {
    "it waits, makes room, and saves again": ("caught(checkpoints.wait); limit(-1); save(1); checkpoints.wait()", 0),
    "it saves, and again": ("caught(lambda: save(2)); limit(-1); save(2); checkpoints.close()", 0),
    "it closes": ("caught(checkpoints.close)", 0),
    "it reads": ("caught(lambda: checkpoints.restore({'w': np.zeros(100_000)}))", 0),
    "it ends": ("pass", 120),
    "it drops its checkpoints": ("del checkpoints; gc.collect()", 120),
    "it ends with a code of its own": ("sys.exit(3)", 120),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", TOLD)
def test_a_save_that_fails_is_told_once(case: str, tmp_path: Path):
    program, code = TOLD[case]
    command = [sys.executable, "-c", textwrap.dedent(START) + program, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    told, printed = f"at: {tmp_path}/run/1: ", done.stdout.splitlines()
    assert (done.returncode, printed[-1]) == (code, "an earlier function at exit"), done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
    if code == 0:
        assert lines == []
        assert printed[0].startswith("ValueError this checkpoint was not written")
        text = printed[0]
    else:
        (text,) = lines
        assert text.startswith("weft.CheckpointError: this checkpoint was not written; ")
    assert told in text
    assert "File too large" in text
    assert "fix: make room" in text
    weft.Checkpoints(tmp_path / "run").restore({"w": jnp.zeros(100_000)}, 0, dtype="like")


def test_a_folder_that_cannot_be_made_is_an_error_of_the_save(tmp_path: Path):
    (tmp_path / "file").touch()
    checkpoints = Checkpoints(tmp_path / "file" / "run")
    with pytest.raises(CheckpointError, match=r"this checkpoint was not written\n  at: .*run: .*\n  fix: make room"):
        checkpoints.save(0, {})


def save_at(place: Path) -> None:
    weft.save_checkpoint(place, {"w": jnp.ones(2)})


READING: dict[str, Any] = {
    "restore": lambda path: Checkpoints(path).restore({}),
    "restore a step": lambda path: Checkpoints(path).restore({}, 3),
    "load_orbax": lambda path: weft.load_orbax(path, {}),
    "load_checkpoint": lambda path: weft.load_checkpoint(path, {}),
    "inspect_checkpoint": weft.inspect_checkpoint,
    "inspect a step": lambda path: weft.inspect_checkpoint(path, 3),
    "import_weights": lambda path: weft.import_weights({}, path),
    "import several": lambda path: weft.import_weights({}, [path]),
}


@pytest.mark.parametrize("name", READING)
def test_to_read_what_is_not_there_makes_nothing_and_names_what_is_near(name: str, tmp_path: Path):
    (tmp_path / "run-1").mkdir()
    for path, fix in {
        tmp_path / "run-i": f"did you mean {tmp_path}/run-1?",
        tmp_path / "rum-1" / "3": f"did you mean {tmp_path}/run-1?",
        tmp_path / "another": "pass the path of a save",
        Path("/proc/self/nowhere"): "pass the path of a save",
    }.items():
        with pytest.raises(CheckpointError, match=f"no checkpoint at {path}\n") as caught:
            READING[name](path)
        assert caught.value.fix == fix
        assert isinstance(caught.value, FileNotFoundError)
    assert [place.name for place in tmp_path.iterdir()] == ["run-1"]


def test_a_run_that_begins_has_no_steps_and_no_folder(tmp_path: Path):
    with Checkpoints(tmp_path / "run") as checkpoints:
        assert (checkpoints.steps, checkpoints.latest) == ([], None)
        checkpoints.wait()
        assert not checkpoints.folder.exists()
        checkpoints.save(0, {})
        assert checkpoints.latest == 0


@pytest.mark.parametrize("name", ["load_checkpoint", "import_weights", "import several"])
def test_a_folder_in_place_of_a_file_is_told_with_what_it_holds(name: str, tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"this is a folder.*\n.*\n  fix: weft.Checkpoints\(folder\).restore"):
        READING[name](tmp_path)
    save_at(tmp_path / "model.safetensors")
    with pytest.raises(IsADirectoryError, match=r"fix: pass its files: model\.safetensors"):
        READING[name](tmp_path)


def test_a_file_in_place_of_a_folder_is_told(tmp_path: Path):
    save_at(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"no folder of Orbax\n.*\n  fix: load_checkpoint reads files"):
        weft.load_orbax(tmp_path / "file", {})
    (tmp_path / "torch.pt").write_bytes(b"PK\x03\x04" * 50)
    with pytest.raises(CheckpointError, match=r"fix: numpy.load or torch.load reads this archive"):
        weft.import_weights({}, tmp_path / "torch.pt")


W = jnp.ones((2, 3))


@pytest.mark.parametrize(
    ("weights", "rename", "message"),
    [
        ({0: W}, None, "must be a string\n  at: weights: 0\n  fix: name arrays as torch does"),
        ({("a",): W, None: W}, None, r"at: weights: \('a',\)\n  at: weights: None"),
        (3, None, r"not 3\n  fix: pass model.state_dict\(\)"),
        ([3], None, "weights are arrays by name"),
        (None, None, "weights are arrays by name"),
        ({"w": W}, {0: "x"}, "rename must be a mapping from names, or a function"),
        ({"w": W}, {"w": 3}, "not to 3\n  fix: write the path as"),
        ({"w": W}, {"w": ["kernel", 3]}, "several paths, or None, and not to"),
        ({"w": W}, lambda name: 3, "rename maps a name to a path"),
    ],
)
def test_what_is_no_weights_is_refused_with_its_place(weights: Any, rename: Any, message: str):
    with pytest.raises(CheckpointError, match=message):
        weft.import_weights({"w": W}, weights, rename=rename)
