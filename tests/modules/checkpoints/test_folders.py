"""Checkpoints of a run in a folder: whole or not there, of sharded state, onto other meshes, in part, and from flax."""

from __future__ import annotations

import functools
import gc
import json
import os
import shutil
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
from weft import CheckpointError, Checkpoints, Linear, load_orbax, shard
from weft.filters import InstanceOf

KEY = jax.random.key(0)
NAMES = {InstanceOf(Linear): ("in", "out")}


def alike(first: Any, second: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


def state(scale: float = 1.0) -> dict[str, Any]:
    model = weft.tree.map(lambda w: w * scale, Linear(4, 8, key=KEY))
    return {"model": model, "key": jax.random.key(3), "epoch": 3, "host": np.arange(3), "half": jnp.ones(2, "bfloat16")}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkpoints]:
    with Checkpoints(tmp_path_factory.mktemp("run")) as checkpoints:
        checkpoints.save(1, state())
        yield checkpoints


def test_what_was_saved_is_restored_of_every_kind(saved: Checkpoints):
    restored = saved.restore(state(0.0))
    assert alike(restored["model"], state()["model"])
    assert jax.random.key_data(restored["key"]).tolist() == jax.random.key_data(jax.random.key(3)).tolist()
    assert (restored["epoch"], type(restored["host"]), restored["half"].dtype) == (3, np.ndarray, jnp.bfloat16)
    assert alike(
        saved.restore(jax.eval_shape(state) | {"epoch": 0, "host": np.zeros(3, int)})["model"], restored["model"]
    )


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
    like = shard(weft.inference_mode(model), narrow, {"in": None, "out": "x"}, names=NAMES)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, (model, optimizer))
        abstract = jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=w.sharding), like)
        restored, report = checkpoints.restore((abstract,), partial=True)
    assert alike(restored[0], model)
    assert restored[0].kernel.sharding.is_equivalent_to(like.kernel.sharding, 2)
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
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*2"):
        load_orbax(saved.folder / "2", {})
    assert saved.steps == [1]


@pytest.mark.parametrize("form", ["state", "pure"])
def test_what_flax_wrote_is_read_by_its_names(form: str, tmp_path: Path):
    flax_model = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    saved = nnx.state({"layers": nnx.List([flax_model])})
    with ocp.StandardCheckpointer() as writer:
        writer.save(tmp_path / "flax", saved if form == "state" else nnx.to_pure_dict(saved))
    restored = load_orbax(tmp_path / "flax", {"layers": [Linear(3, 4, key=KEY)]})
    assert jnp.array_equal(restored["layers"][0].kernel, flax_model.kernel[...])


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
@pytest.mark.parametrize("form", [(), ("--slow",), ("--file",)], ids=["folders", "slow deletion", "file"])
def test_a_run_that_is_killed_leaves_its_last_checkpoint_and_no_part_of_one(form: tuple[str, ...]):
    program = Path(__file__).with_name("killing.py")
    done = subprocess.run([sys.executable, str(program), "3", *form], capture_output=True, text=True, timeout=300)
    assert "3 kills" in done.stdout, done.stderr


# ---- who reads and who writes ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_who_opens_a_folder_deletes_nothing_that_another_process_writes():
    program = Path(__file__).with_name("opening.py")
    done = subprocess.run([sys.executable, str(program), "4"], capture_output=True, text=True, timeout=300)
    assert "4 saves, nothing lost" in done.stdout, done.stderr


def test_to_open_and_to_read_a_folder_changes_nothing_in_it(tmp_path: Path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"w": jnp.ones(2)})
    (tmp_path / "2.orbax-checkpoint-tmp" / "arrays").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with Checkpoints(tmp_path, keep=1) as reader:
        assert reader.steps == [1]
        reader.restore({"w": jnp.zeros(2)})
    assert sorted(tmp_path.rglob("*")) == before
    with Checkpoints(tmp_path) as writer:
        writer.save(3, {"w": jnp.ones(2)})
        assert writer.steps == [1, 3]
    assert sorted(place.name for place in tmp_path.iterdir()) == ["1", "3"]


def test_checkpoints_that_are_dropped_are_closed_by_the_next_call_and_not_where_the_collector_runs(tmp_path: Path):
    # It runs in the middle of any function, which may hold a lock that closing takes: the program hung.
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, {"w": jnp.ones(2)})
    del checkpoints
    gc.collect()
    assert (tmp_path / ".writer").exists()
    assert load_orbax(tmp_path / "0", {"w": jnp.zeros(2)})["w"].tolist() == [1.0, 1.0]
    assert not (tmp_path / ".writer").exists()
    with Checkpoints(tmp_path) as again:
        again.save(1, {"w": jnp.ones(2)})
        assert again.steps == [0, 1]


def test_two_writers_of_one_folder_are_an_error_that_names_the_other(tmp_path: Path):
    tree = {"w": jnp.ones(2)}
    with Checkpoints(tmp_path) as first, Checkpoints(tmp_path) as second:
        first.save(0, tree)
        with pytest.raises(CheckpointError, match=rf"another .* writes to this folder\n.*: process {os.getpid()} on "):
            second.save(1, tree)
        first.wait()
        assert second.steps == [0]
        first.close()
        second.save(1, tree)
        assert second.steps == [0, 1]


def test_a_writer_that_could_not_begin_holds_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space")

    with Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patch:
            patch.setattr(ocp, "CheckpointManager", fail)
            with pytest.raises(CheckpointError, match=r"was not written\n  at: .*: no space"):
                checkpoints.save(0, {})
        checkpoints.save(0, {})
        assert checkpoints.steps == [0]


def test_a_writer_that_nobody_refers_to_has_written_and_lets_others_write(tmp_path: Path):
    for step in range(2):
        # The second object is made before the first one goes, as when a cell of a notebook is run again.
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save(step, {"w": jnp.ones(2)})
    assert checkpoints.steps == [0, 1]
    checkpoints.close()


def test_a_step_of_which_a_part_is_gone_is_not_listed(tmp_path: Path):
    with Checkpoints(tmp_path) as checkpoints:
        for step in range(3):
            checkpoints.save(step, {"w": jnp.ones(2)})
        assert checkpoints.steps == [0, 1, 2]
        (tmp_path / "1" / "_CHECKPOINT_METADATA").unlink()
        (tmp_path / "2" / "manifest" / "metadata").unlink()
        assert checkpoints.steps == [0]
        with pytest.raises(CheckpointError, match=r"a part of a checkpoint of step 1\n.*\n  fix: remove it"):
            checkpoints.save(1, {"w": jnp.ones(2)})
        shutil.rmtree(tmp_path / "1")
        checkpoints.save(1, {"w": jnp.ones(2)})
        assert checkpoints.steps == [0, 1]


@pytest.mark.parametrize("step", [-1, 1.5, True, "1", None, np.bool_(True)])
def test_what_is_no_step_is_refused_at_the_call(step: Any, tmp_path: Path):
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(
            CheckpointError, match=r"a step must be an integer of 0 or more, not .*\n  fix: pass an integer, 0 or more"
        ):
            checkpoints.save(step, {})
        for number in (0, np.int64(1), jnp.asarray(2)):
            checkpoints.save(number, {})
        assert checkpoints.steps == [0, 1, 2]
        if step is not None:
            with pytest.raises(CheckpointError, match="a step must be an integer of 0 or more"):
                checkpoints.restore({}, step)


def test_a_save_after_close_and_a_folder_that_is_a_file_are_errors_at_the_call(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path / "run")
    checkpoints.save(0, {})
    checkpoints.close()
    with pytest.raises(CheckpointError, match="were closed"):
        checkpoints.save(1, {})
    assert (checkpoints.steps, checkpoints.restore({})) == ([0], {})
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="this path is a file, not a folder"):
        Checkpoints(tmp_path / "file")


# ---- every tree ------------------------------------------------------------------------------------------------------


MESH = jax.make_mesh((8,), ("x",), (jax.sharding.AxisType.Auto,))
SHARDED = jax.NamedSharding(MESH, jax.P("x"))
DTYPES = sorted({jnp.dtype(value).name for value in vars(jnp).values() if isinstance(value, type(jnp.float32))})
# JAX compiles nothing for these, or did not in an earlier version.
ONLY_NUMPY = {"int1", "uint1", "float6_e2m3fn", "float6_e3m2fn"}


def every_leaf() -> dict[str, Any]:
    """Made in the test, not on import: it compiles some fifty programs, in each worker."""
    return {
        **{f"numpy {name}": np.array([[0, 1], [1, 0]]).astype(name) for name in DTYPES},
        **{
            f"jax {name}": jnp.array([[0, 1], [1, 0]]).astype(name)
            for name in DTYPES
            if name not in ONLY_NUMPY and jax.dtypes.canonicalize_dtype(name) == name
        },
        **{
            f"sharded {name}": jax.device_put((jnp.arange(16) % 2).astype(name), SHARDED)
            for name in ("bfloat16", "uint4", "int4", "float8_e4m3")
        },
        **{
            f"{what} {impl}": key
            for impl in ("threefry2x32", "rbg", "unsafe_rbg")
            for what, key in {
                "key": jax.random.key(3, impl=impl),
                "keys": jax.random.split(jax.random.key(3, impl=impl), (2, 4)),
                "no keys": jax.random.split(jax.random.key(3, impl=impl), 0),
                "sharded keys": jax.device_put(jax.random.split(jax.random.key(3, impl=impl), 8), SHARDED),
            }.items()
        },
        "an old key": jax.random.PRNGKey(3),
        "empty": jnp.zeros((0, 3)),
        "empty sharded": jax.device_put(jnp.zeros((8, 0)), SHARDED),
        "empty NumPy": np.zeros((0, 3)),
        "empty uint4": jnp.zeros(0, jnp.uint4),
        "weak": jnp.asarray(2.0),
        "weak integers": jnp.full((2, 3), 1),
        "weak and empty": jnp.full(0, 1.0),
        "replicated": jax.device_put(jnp.arange(4.0), jax.NamedSharding(MESH, jax.P())),
        "elsewhere": jax.device_put(jnp.arange(4.0), jax.devices()[3]),
        "scalar NumPy": np.float32(3),
        "array without axes": np.array(3.0),
        "numbers": [3, 1.5, True, 1 + 2j, -5, float("inf")],
        "a large number": 7**20_000,
        "long doubles": np.ones(3, np.longdouble) / 3,
        "texts": np.array(["a", "bc"]),
        "dates": np.array(["2020-01-01"], "datetime64[s]"),
        "structures": np.array([(1, 2.0)], [("a", "i4"), ("b", "f4")]),
        "other bytes first": np.arange(3, dtype=">i4"),
        "other axes first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "backwards": np.arange(6)[::-1],
    }


def described(leaf: Any) -> tuple[Any, ...]:
    if not hasattr(leaf, "dtype"):
        return type(leaf), leaf
    sharding = str(leaf.sharding) if isinstance(leaf, jax.Array) and leaf.committed else None
    values = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    return type(leaf), leaf.dtype, leaf.shape, np.asarray(values).tobytes(), getattr(leaf, "weak_type", None), sharding


def there_and_back(tree: Any, folder: Path) -> list[Any]:
    weft.save_checkpoint(folder / "file", tree)
    with Checkpoints(folder / "run") as checkpoints:
        checkpoints.save(0, tree)
        return [weft.load_checkpoint(folder / "file", tree), checkpoints.restore(tree)]


def test_a_leaf_of_every_kind_comes_back_as_it_was(tmp_path: Path):
    leaves = every_leaf()
    for restored in there_and_back(leaves, tmp_path):
        for name, leaf in leaves.items():
            pairs = zip(jax.tree.leaves(restored[name]), jax.tree.leaves(leaf), strict=True)
            assert all(described(loaded) == described(saved) for loaded, saved in pairs), name


TREES: dict[str, Any] = {
    "nothing": {},
    "None": None,
    "only a number": {"epoch": 3},
    "a number": 3,
    "an array": np.ones(2),
    "no arrays but empty ones": {"w": np.zeros((0, 4))},
    "names with dots": {"a.b": np.ones(3), "a": {"b": np.zeros(3)}},
    "names with slashes": {"a/b": np.ones(3), "a": {"b": np.zeros(3), ".zarray": np.ones(1), "0.0": np.ones(2)}},
    "numbers as texts": {"0": np.ones(3), "-1": np.ones(2), "a": [np.zeros(3)]},
    "escaped names": {"%2E": np.ones(1), ".": np.ones(2), "%": np.ones(3), "": np.ones(4), "%-": np.ones(5)},
    "names of numbers": {0: np.ones(3), -1: np.ones(2)},
    "names of tuples": {(0, 1): np.ones(3), (1,): np.ones(2)},
    "names beyond ASCII": {"gr\u00f6\u00dfe": np.ones(3), "\ud800": np.ones(2), "a\nb\0": np.ones(1)},
    "a long name": {"n" * 300: np.ones(2)},
    "what Orbax calls things": {"root": np.ones(1), "default": {"value": np.ones(2)}, "_METADATA": np.ones(3)},
    "configuration": {"text": np.ones(1), "act": (jax.nn.relu, None, (1, 2)), "layer": Linear(2, 3, key=KEY)},
    "deep": functools.reduce(lambda tree, _: {"a.b": tree}, range(500), np.ones(2)),
    "deep lists": functools.reduce(lambda tree, _: [tree], range(500), np.ones(2)),
    "deep on both sides": functools.reduce(lambda t, i: {"a": t, "b": np.full(1, i)}, range(150), np.ones(2)),
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_every_tree_that_a_file_takes_a_folder_takes(tree: Any, tmp_path: Path):
    for restored in there_and_back(tree, tmp_path):
        assert jax.tree.structure(restored) == jax.tree.structure(tree)
        pairs = zip(jax.tree.leaves(restored), jax.tree.leaves(tree), strict=True)
        assert all(described(loaded) == described(saved) for loaded, saved in pairs)


def test_an_array_of_numpy_may_be_changed_as_soon_as_it_was_saved(tmp_path: Path):
    tree = {"w": np.zeros(1_000_000), "odd": np.zeros(1_000_000, np.longdouble)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, tree)
        tree["w"] += 1
        tree["odd"] += 1
        restored = checkpoints.restore(tree)
    assert not restored["w"].any()
    assert not restored["odd"].any()


@pytest.mark.parametrize(
    "change",
    [
        {"arrays": {"w": {"keys": ["w"], "dtype": "float32", "shape": [1 << 40]}}},
        {"arrays": {"w": {"keys": ["w"], "dtype": "float32", "shape": ["2"]}}},
        {"arrays": {"w": {"keys": [], "dtype": "float32", "shape": [2]}}},
        {"arrays": {"w": {"keys": ["v"], "dtype": "float32", "shape": [2]}}},
        {"arrays": {"w": {"keys": ["w", "x"], "dtype": "float32", "shape": [2]}}},
        {"arrays": {"w": {"keys": ["w"], "dtype": "int32", "shape": [2]}}},
        {"arrays": {"w": {"keys": ["w"], "dtype": "float32", "shape": [3]}}},
        {"arrays": {"w": {}}},
        {"arrays": []},
        {"numbers": {"w": ["float", "no number"]}},
        {"numbers": {"w": ["object", "3"]}},
        {"numbers": {"w": "3"}},
        {"configuration": {"w": 3}},
        {"format": "1"},
        {"format": None},
        {"format": 2},
    ],
)
def test_a_forged_manifest_is_a_checkpoint_error(change: dict[str, Any], saved_arrays: Path, tmp_path: Path):
    shutil.copytree(saved_arrays, tmp_path / "1")
    file = tmp_path / "1" / "manifest" / "metadata"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps(manifest | change))
    # Into what the manifest says that there is, as far as it says something that there can be.
    for like in (((2,), "float32"), ((3,), "float32"), ((1 << 40,), "float32"), ((2,), "int32")):
        with pytest.raises(CheckpointError):
            load_orbax(tmp_path / "1", {"w": jax.ShapeDtypeStruct(*like)})


@pytest.fixture(scope="module")
def saved_arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arrays")
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(1, {"w": np.ones(2, np.float32)})
    return folder / "1"
