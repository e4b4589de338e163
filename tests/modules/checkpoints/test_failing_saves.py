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

    def fail(run):
        global checkpoints
        limit(-1)
        checkpoints = weft.Checkpoints(f"{folder}/{run}")
        save(0)
        checkpoints.wait()
        limit(20_000)
        save(1)
"""
# What a program does after a save that fails for want of room, by the run: it is told by the next call.
CALLS = {
    "waits": "caught(checkpoints.wait); limit(-1); save(1); checkpoints.close()",
    "saves": "caught(lambda: save(2)); limit(-1); save(2); checkpoints.close()",
    "closes": "caught(checkpoints.close)",
    "reads": "caught(lambda: checkpoints.restore({'w': np.zeros(100_000)}))",
}
# Programs that make no further call.
ENDS = {
    "it ends": "pass",
    "it drops its checkpoints": "del checkpoints; gc.collect()",
    "it ends with a code of its own": "sys.exit(3)",
}


def ended(folder: Path, program: str) -> tuple[int, list[str], list[str]]:
    """Runs a program; returns its exit code, what it prints, and its lines on standard error."""
    command = [sys.executable, "-c", textwrap.dedent(START) + program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    *printed, last = done.stdout.splitlines()
    assert last == "an earlier function at exit", done.stderr
    return done.returncode, printed, [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]


def assert_told(text: str, run: Path) -> None:
    """Asserts that a text tells of step 1 of a run that failed for want of room, and that its step 0 is complete."""
    for part in (f"at: {run}/1: ", "File too large", "fix: make room"):
        assert part in text
    weft.Checkpoints(run).restore({"w": jnp.zeros(100_000)}, 0, dtype="like")


@pytest.mark.slow
def test_a_save_that_fails_is_told_by_the_next_call_and_only_there(tmp_path: Path):
    # One process for all: to start one takes longer than what it does.
    code, printed, lines = ended(tmp_path, "\n".join(f"fail({run!r}); {call}" for run, call in CALLS.items()))
    assert (code, lines) == (0, [])
    for text, run in zip(printed, CALLS, strict=True):
        assert text.startswith("ValueError this checkpoint was not written")
        assert_told(text, tmp_path / run)


@pytest.mark.slow
@pytest.mark.parametrize("case", ENDS)
def test_a_save_that_fails_last_is_a_line_and_the_exit_code(case: str, tmp_path: Path):
    code, printed, (text,) = ended(tmp_path, f"fail('run'); {ENDS[case]}")
    assert (code, printed) == (120, [])
    assert text.startswith("weft.CheckpointError: this checkpoint was not written; ")
    assert_told(text, tmp_path / "run")


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
