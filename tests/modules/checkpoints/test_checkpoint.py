"""Checkpoints: what comes back is what went in, and nothing else does."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from weft.core.records.keys import Keys
from weft.modules import BatchNorm, CheckpointError, Linear, load_checkpoint, save_checkpoint


def state(seed=0, features=4):
    layer = Linear(3, features, key=jax.random.key(seed), dtype=jnp.bfloat16)
    norm = BatchNorm(features)
    arrays = {
        "bf16": jnp.ones(2, jnp.bfloat16),
        "bool": jnp.array([True]),
        "empty": jnp.zeros((0, 2)),
        "np": np.ones(1),
    }
    return {
        "model": [layer, norm],
        "optimizer": optax.adam(1e-3).init({"w": jnp.ones(2) * seed}),
        "keys": Keys(seed, a=jax.random.key(seed, impl="rbg")),
        "epoch": seed,
        "function": jax.nn.relu,
        **arrays,
    }


@pytest.fixture
def file(tmp_path):
    return tmp_path / "state.safetensors"


def raw(tree):
    def bits(leaf):
        is_key = jnp.issubdtype(getattr(leaf, "dtype", object), jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf).tobytes()

    return [bits(leaf) for leaf in jax.tree.leaves(tree) if not callable(leaf)]


def test_every_array_comes_back_bit_for_bit(file):
    saved = state(7)
    save_checkpoint(file, saved)
    loaded = load_checkpoint(file, state(0))
    assert raw(loaded) == raw(saved)
    assert jax.tree.structure(loaded) == jax.tree.structure(saved)
    assert loaded["epoch"] == 7
    assert type(loaded["epoch"]) is int
    assert isinstance(loaded["np"], np.ndarray)
    assert loaded["keys"].next("a")[0] == saved["keys"].next("a")[0]


def test_shapes_are_enough_to_load_into(file):
    layer = Linear(3, 4, key=jax.random.key(1))
    save_checkpoint(file, layer)
    loaded = load_checkpoint(file, jax.eval_shape(lambda: Linear(3, 4, key=jax.random.key(0))))
    assert raw(loaded) == raw(layer)


def test_other_readers_of_safetensors_can_read_it(file):
    numpy = pytest.importorskip("safetensors.numpy")
    save_checkpoint(file, {"a": jnp.arange(3), "b": [jnp.ones((2, 2))]})
    arrays = numpy.load_file(file)
    assert arrays["a"].tolist() == [0, 1, 2]
    assert arrays["b[0]"].shape == (2, 2)


def test_a_tree_that_does_not_fit_is_named_by_path(file):
    save_checkpoint(file, {"w": jnp.zeros((2, 3)), "old": jnp.zeros(1), "n": jnp.zeros(1)})
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(file, {"w": jnp.zeros((2, 4)), "new": jnp.zeros(1), "n": jnp.zeros(1, int)})
    for line in (
        "holds another tree",
        "w: float32[2,3], not float32[2,4]",
        "old: float32[1], not nothing",
        "new: nothing, not float32[1]",
        "n: float32[1], not int32[1]",
    ):
        assert line in str(error.value)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "header", "empty", "text"])
def test_damage_is_found_out(file, damage):
    save_checkpoint(file, state())
    blob = bytearray(file.read_bytes())
    if damage == "flipped":
        blob[-3] ^= 1
    elif damage == "header":
        blob[blob.index(b"F32")] = ord("G")
    blob = {"truncated": blob[:-10], "empty": b"", "text": b"not a checkpoint at all"}.get(damage, blob)
    file.write_bytes(bytes(blob))
    with pytest.raises(CheckpointError, match=r"state.safetensors is (damaged|not a checkpoint)"):
        load_checkpoint(file, state())


@pytest.mark.parametrize("failure", ["encoding", "moving"])
def test_a_failed_save_leaves_the_old_checkpoint_and_nothing_else(file, failure, monkeypatch):
    save_checkpoint(file, {"a": jnp.ones(2)})
    before = file.read_bytes()
    if failure == "encoding":
        with pytest.raises(CheckpointError, match="an array of Python objects cannot be stored\n  at: a"):
            save_checkpoint(file, {"a": np.array([None])})
    else:
        monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            save_checkpoint(file, {"a": jnp.zeros(2)})
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_a_missing_file_or_folder_is_an_os_error(file):
    with pytest.raises(FileNotFoundError):
        load_checkpoint(file, {})
    with pytest.raises(FileNotFoundError):
        save_checkpoint(file.parent / "no" / "folder", {})
