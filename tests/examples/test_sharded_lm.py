"""One model, one step, and a table of rules for each way to train: the numbers are the same, and nothing else moves."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import weft

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "sharded_lm.py"
STEPS = 3
COLLECTIVE = re.compile(
    r"= (\(?[^ ]+).* (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)(?:-start)?\("
)


@pytest.fixture(scope="module")
def program() -> Any:
    spec = importlib.util.spec_from_file_location("sharded_lm", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sharded_lm"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def on_one_device(program: Any) -> list[float]:
    return program.train("single", STEPS)


@pytest.fixture
def compiled() -> Iterator[Callable[[], int]]:
    """How many programs XLA has compiled, or JAX has loaded, since the test began."""
    count = 0

    def listen(event: str, duration: float, **_: Any) -> None:
        nonlocal count
        count += event.endswith("backend_compile_duration")

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield lambda: count
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize(
    ("rules", "explicit"),
    [("data", False), ("fsdp", False), ("tensor", False), ("product", False), ("product", True)],
    ids=["data", "fsdp", "tensor", "product", "product on an explicit mesh"],
)
def test_a_table_of_rules_changes_where_and_not_what(
    rules: str, explicit: bool, program: Any, on_one_device: list[float], compiled: Callable[[], int]
):
    mesh = program.make_mesh(rules, explicit=explicit)
    losses: list[Any] = []
    with weft.axis_rules(mesh, program.RULES[rules][1]):
        state, step = weft.init(program.State, key=jax.random.key(0)), program.make_step(mesh)
        places = [leaf.sharding for leaf in jax.tree.leaves(state)]
        batches = [program.place(tokens, mesh) for tokens in program.batches(STEPS)]
        before = compiled()
        for batch in batches:
            donated = state
            with jax.transfer_guard("disallow"):
                loss, state = step(state, batch)
            losses.append(loss)
            assert all(leaf.is_deleted() for leaf in jax.tree.leaves(donated))
        assert compiled() == before + 1
        text = step.lower(state, batches[0]).compile().as_text()
    assert [leaf.sharding for leaf in jax.tree.leaves(state)] == places
    assert np.allclose([float(loss) for loss in losses], on_one_device, atol=1e-5, rtol=0)
    collectives = COLLECTIVE.findall(text)
    length = re.compile(rf"[\[,]{program.LENGTH - 1}[,\]]")
    # What has a batch and is as long as a sequence is an activation: only tensor-parallel layers add those up, and
    # nobody gathers them but the look-up in a table that is divided along both axes.
    activation = re.compile(rf"f32\[\d+,{program.LENGTH - 1},")
    gathered = [shape for shape, kind in collectives if kind == "all-gather" and activation.search(shape)]
    assert len(gathered) <= (rules == "product")
    assert any(kind == "all-gather" for _, kind in collectives) == (rules in ("fsdp", "product"))
    added = [shape for shape, kind in collectives if kind == "all-reduce" and length.search(shape)]
    assert bool(added) == (rules in ("tensor", "product"))


def test_parameters_and_moments_are_divided_at_rest(program: Any):
    with weft.axis_rules(program.make_mesh("product"), program.RULES["product"][1]):
        state = weft.init(program.State, key=jax.random.key(0))
    shard_bytes = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state))
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert shard_bytes < whole / 6  # of eight devices; norms and some biases are everywhere


@contextlib.contextmanager
def two_processes(*options: str) -> Iterator[list[Any]]:
    """The program in two processes, with four devices each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    command = [sys.executable, str(PROGRAM), *options, "--coordinator", address, "--processes", "2", "--process"]
    # Four devices each, which the program asks for.
    flags = " ".join(flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    pipes["env"] = {**os.environ, "XLA_FLAGS": flags}
    runs = [subprocess.Popen([*command, str(n)], **pipes) for n in range(2)]
    try:
        yield runs
    finally:
        for run in runs:
            run.kill()
            if run.stdout is not None and not run.stdout.closed:
                run.communicate()


def losses_of(runs: list[Any]) -> list[float]:
    outputs = [run.communicate(timeout=500) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs[0][1][-2000:]
    return [float(text) for text in outputs[0][0].splitlines()[-1].split()]  # behind what gloo says


def test_two_processes_train_as_one_does_and_go_on_after_a_kill_on_another_mesh(program: Any, tmp_path: Path):
    folder = tmp_path / "run"
    with two_processes("--rules", "product", "--steps", "10000", "--checkpoints", str(folder)) as runs:
        while not (folder / "1").exists():
            assert [run.poll() for run in runs] == [None, None], runs[0].communicate()[1][-2000:]
            time.sleep(0.05)
    last = max(int(step.name) for step in folder.iterdir() if step.name.isdecimal())
    with two_processes("--rules", "fsdp", "--steps", str(last + 3), "--checkpoints", str(folder)) as runs:
        after = losses_of(runs)
    alone = program.train("single", last + 3)
    assert after
    assert np.allclose(after, alone[-len(after) :], atol=1e-5, rtol=0)
