"""Checkpoints of a run in a folder: whole or not there, of sharded state, onto other meshes, in part, and from flax."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import weft
from flax import nnx
from weft import CheckpointError, Checkpoints, InstanceOf, Linear, load_orbax, shard

KEY = jax.random.key(0)
NAMES = {InstanceOf(Linear): ("in", "out")}


def alike(left: Any, right: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True))


def state(scale: float = 1.0) -> dict[str, Any]:
    model = weft.tree.map(lambda w: w * scale, Linear(4, 8, key=KEY))
    return {"model": model, "key": jax.random.key(3), "epoch": 3, "host": np.arange(3), "half": jnp.ones(2, "bfloat16")}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoints]:
    with Checkpoints(tmp_path_factory.mktemp("run")) as checkpoints:
        checkpoints.save(1, state())
        yield checkpoints


def test_what_was_saved_is_restored_of_every_kind(saved: Checkpoints):
    found = saved.restore(state(0.0))
    assert alike(found["model"], state()["model"])
    assert jax.random.key_data(found["key"]).tolist() == jax.random.key_data(jax.random.key(3)).tolist()
    assert (found["epoch"], type(found["host"]), found["half"].dtype) == (3, np.ndarray, jnp.bfloat16)
    assert alike(saved.restore(jax.eval_shape(state) | {"epoch": 0, "host": np.zeros(3, int)})["model"], found["model"])


def test_the_newest_are_kept_and_a_run_goes_on_with_the_last(tmp_path: Path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest is None
        for step in range(4):
            checkpoints.save(step, {"w": jnp.full(2, step)})
        assert checkpoints.steps == [2, 3]
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.restore({"w": jnp.zeros(2, int)})["w"].tolist() == [3, 3]
        assert checkpoints.restore({"w": jnp.zeros(2, int)}, 2)["w"].tolist() == [2, 2]
        with pytest.raises(CheckpointError, match="of step 3 already"):
            checkpoints.save(3, {"w": jnp.zeros(2)})
        with pytest.raises(CheckpointError, match=r"no checkpoint of step 0\n.*holds steps \[2, 3\]"):
            checkpoints.restore({"w": jnp.zeros(2)}, 0)


def test_what_was_saved_may_be_donated_at_once(tmp_path: Path):
    clear = weft.jit(lambda tree: weft.tree.map(lambda w: w * 0, tree), donate_argnums=0)
    tree = {"w": jnp.ones((1000, 1000))}
    clear({"w": jnp.ones((1000, 1000))})
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, tree)
        clear(tree)
        assert bool((checkpoints.restore({"w": jnp.zeros((1000, 1000))})["w"] == 1).all())


def test_a_model_is_restored_onto_another_mesh(tmp_path: Path):
    wide = jax.make_mesh((4,), ("x",))
    narrow = jax.make_mesh((2,), ("x",), devices=jax.devices()[4:6])
    model = shard(Linear(4, 8, key=KEY), wide, {"in": "x", "out": None}, names=NAMES)
    optimizer = weft.Optimizer(model, optax.adam(0.1))
    like = shard(weft.inference(model), narrow, {"in": None, "out": "x"}, names=NAMES)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, (model, optimizer))
        abstract = jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=w.sharding), like)
        found, report = checkpoints.restore((abstract,), partial=True)
    assert alike(found[0], model)
    assert found[0].kernel.sharding.is_equivalent_to(like.kernel.sharding, 2)
    assert "[1].step" in report.left_over


def test_a_part_is_restored_and_what_is_not_there_is_said(saved: Checkpoints):
    (part, report) = saved.restore({"model": Linear(4, 8, key=jax.random.key(1)), "new": jnp.zeros(1)}, partial=True)
    assert alike(part["model"], state()["model"])
    assert report == weft.LoadReport(missing=("new",), left_over=("epoch", "half", "host", "key"))
    moved = saved.restore({"body": Linear(4, 8, key=KEY)}, partial=True, rename={"model": "body"})[0]
    assert alike(moved["body"], state()["model"])


def test_what_does_not_fit_is_named_and_so_is_other_configuration(saved: Checkpoints):
    with pytest.raises(CheckpointError, match=r"model.kernel: float32\[4,8\], not float32\[4,9\]"):
        saved.restore({**state(), "model": Linear(4, 9, key=KEY)})
    with pytest.raises(CheckpointError, match="half: bfloat16"):
        saved.restore({**state(), "half": jnp.ones(2)})
    with pytest.raises(CheckpointError, match=r"model\.dtype: "):
        saved.restore({**state(), "model": Linear(4, 8, dtype=jnp.bfloat16, key=KEY)})


def test_what_cannot_be_stored_leaves_no_step(saved: Checkpoints):
    with pytest.raises(CheckpointError, match="at: w"):
        saved.save(2, {"w": jax.ShapeDtypeStruct((2,), jnp.float32)})
    with pytest.raises(CheckpointError, match="no checkpoint of Orbax"):
        load_orbax(saved.folder / "2", {})
    assert saved.steps == [1]


@pytest.mark.parametrize("form", ["state", "pure"])
def test_what_flax_wrote_is_read_by_its_names(form: str, tmp_path: Path):
    flax_model = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    saved = nnx.state({"layers": nnx.List([flax_model])})
    with ocp.StandardCheckpointer() as writer:
        writer.save(tmp_path / "flax", saved if form == "state" else nnx.to_pure_dict(saved))
    found = load_orbax(tmp_path / "flax", {"layers": [Linear(3, 4, key=KEY)]})
    assert jnp.array_equal(found["layers"][0].kernel, flax_model.kernel[...])


@pytest.mark.slow
def test_a_damaged_folder_is_one_clear_error(tmp_path: Path):
    # In a process of its own: what Orbax reads beside it goes on for a while after the error, and complains.
    program = """
        import sys
        from pathlib import Path
        import jax.numpy as jnp, weft

        folder = Path(sys.argv[1])
        with weft.Checkpoints(folder) as checkpoints:
            for step in range(3):
                checkpoints.save(step, {"w": jnp.ones(2)})
        for step, pattern, text in ((0, "manifest.ocdbt", "short"), (1, "_METADATA", '{"tree'), (2, "**/d/*", None)):
            files = list((folder / str(step) / "arrays").glob(pattern))
            for file in files:
                file.unlink() if text is None else file.write_text(text)
            try:
                weft.load_orbax(folder / str(step), {"w": jnp.zeros(2)})
            except weft.CheckpointError as error:
                print(len(files) > 0, "missing or damaged" in str(error), f"{step}/arrays: " in str(error))
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == ["True True True"] * 3, done.stderr


def test_a_manifest_that_is_gone_is_an_error_of_ours(tmp_path: Path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"w": jnp.ones(2)})
    (file,) = (file for file in (tmp_path / "1" / "manifest").iterdir() if file.is_file() and file.name == "metadata")
    file.unlink()
    with pytest.raises(CheckpointError, match="the manifest is damaged"):
        load_orbax(tmp_path / "1", {"w": jnp.zeros(2)})


@pytest.mark.slow
def test_a_program_that_ends_has_written_its_last_save(tmp_path: Path):
    program = """
        import sys
        import jax, jax.numpy as jnp, weft
        checkpoints = weft.Checkpoints(sys.argv[1])
        checkpoints.save(1, {"w": jnp.ones(2)})
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert load_orbax(tmp_path / "run" / "1", {"w": jnp.zeros(2)})["w"].tolist() == [1.0, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize("form", [(), ("--file",)], ids=["folders", "file"])
def test_a_run_that_is_killed_leaves_its_last_checkpoint(form: tuple[str, ...]):
    program = Path(__file__).with_name("killing.py")
    done = subprocess.run([sys.executable, str(program), "3", *form], capture_output=True, text=True, timeout=300)
    assert "3 kills" in done.stdout, done.stderr
