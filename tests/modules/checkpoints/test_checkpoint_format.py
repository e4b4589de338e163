"""Files: forged ones are refused, those of other programs and other versions are read or named for what they are."""

import json
import math

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from weft.modules import CheckpointError, load_checkpoint, save_checkpoint

from .hostile import FORGED, FORGED_FOR_WHO_LOADS_THEM, check, entry, signed, written


@pytest.fixture
def file(tmp_path):
    return tmp_path / "state.safetensors"


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
def test_a_forged_file_is_refused_as_a_checkpoint_error(file, forged):
    file.write_bytes(forged)
    with pytest.raises(CheckpointError, match=r"state.safetensors is (damaged|not a checkpoint)"):
        load_checkpoint(file, {"a": jnp.zeros(1)})


@pytest.mark.parametrize("forged", FORGED_FOR_WHO_LOADS_THEM.values(), ids=FORGED_FOR_WHO_LOADS_THEM.keys())
def test_no_file_ends_in_another_error_or_asks_for_memory_that_it_does_not_fill(file, forged):
    file.write_bytes(forged)
    assert check(file) == []


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 20), st.floats(), st.sampled_from(["F32", "U8", "a", ""])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "dtype", "shape", "data_offsets", "__metadata__"]), inner),
    ),
)
ENTRIES = st.builds(
    entry,
    st.integers(-1, 8),
    st.integers(-1, 8),
    st.sampled_from(["F32", "U8", "F4", "BOOL"]),
    st.lists(st.integers(-1, 4), max_size=2),
)
METADATA = st.dictionaries(st.sampled_from(["weft", "sha256", "kinds", "weak", "configuration"]), JSON.map(json.dumps))
HEADERS = st.one_of(
    JSON,
    st.dictionaries(st.sampled_from(["a", "b", "c"]), ENTRIES),
    st.builds(
        lambda told, entries: {"__metadata__": told, **entries}, METADATA, st.dictionaries(st.just("a"), ENTRIES)
    ),
)


@pytest.mark.slow
@given(header=HEADERS, data=st.binary(max_size=12), sign=st.booleans())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_header_raises_anything_but_a_checkpoint_error(file, header, data, sign):
    told = header.pop("__metadata__", {}) if sign and isinstance(header, dict) else {}
    told = {name: text for name, text in told.items() if name != "sha256"} if isinstance(told, dict) else {}
    file.write_bytes(signed(header, data, **told) if sign and isinstance(header, dict) else written(header, data))
    try:
        tree, report = load_checkpoint(file, {"a": jnp.zeros(1)}, partial=True)
    except CheckpointError:
        return
    assert tree["a"].shape == (1,)
    assert report.missing in ((), ("a",))


def test_an_error_says_what_is_wrong_with_the_file(file):
    file.write_bytes(FORGED["entries that overlap"])
    with pytest.raises(CheckpointError, match="is not a checkpoint: invalid offset for tensor"):
        load_checkpoint(file, {"a": jnp.zeros(1)})


def test_a_file_of_a_newer_format_is_refused_with_what_to_do(file):
    file.write_bytes(signed({"a": entry()}, b"1234", weft="2"))
    with pytest.raises(CheckpointError, match=r"has format 2, and .* up to 1\n  fix: load it with the version of weft"):
        load_checkpoint(file, {"a": jnp.zeros(1)})


# Written before files had a version: numbers and keys are arrays like others, and there is no configuration.
OLD = (
    b'\xe0\x01\0\0\0\0\0\0{"key": {"dtype": "U32", "shape": [2], "data_offsets": [0, 8]}, "np": {"dtype": "I8", '
    b'"shape": [2], "data_offsets": [8, 10]}, "on": {"dtype": "BOOL", "shape": [], "data_offsets": [10, 11]}, '
    b'"rate": {"dtype": "F64", "shape": [], "data_offsets": [11, 19]}, "step": {"dtype": "I64", "shape": [], '
    b'"data_offsets": [19, 27]}, "w": {"dtype": "F32", "shape": [3], "data_offsets": [27, 39]}, "__metadata__": '
    b'{"sha256": "aec32cf30b158cffe4f2ff2b843069f3754357ced07c3941931449a2c99285e8"}}  \0\0\0\0\x07\0\0\0\x01\x01\x01'
    b"\0\0\0\0\0\0\xe0?d\0\0\0\0\0\0\0\0\0\0\0\0\0\x80?\0\0\0@"
)


def old_like():
    numbers = {"step": 0, "rate": 0.0, "on": False}
    return {"w": jnp.zeros(3), "key": jax.random.key(0), "np": np.zeros(2, np.int8), **numbers}


def test_a_file_from_before_there_were_versions_loads(file):
    file.write_bytes(OLD)
    restored = load_checkpoint(file, old_like())
    assert restored["w"].tolist() == [0, 1, 2]
    assert restored["key"] == jax.random.key(7)
    assert restored["np"].tolist() == [1, 1]
    assert (restored["step"], restored["rate"], restored["on"]) == (100, 0.5, True)


def test_damage_in_a_file_from_before_there_were_versions_is_found_out(file):
    for place in (-1, -30, OLD.index(b"U32"), OLD.index(b"step")):
        damaged = bytearray(OLD)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"is (damaged|not a checkpoint)"):
            load_checkpoint(file, old_like())


@pytest.mark.parametrize("length", [60, 200, -1])
def test_a_file_that_was_cut_off_is_damaged(file, length):
    save_checkpoint(file, {"w": jnp.ones(3)})
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(CheckpointError, match="is damaged: "):
        load_checkpoint(file, {"w": jnp.ones(3)})


def test_damage_is_named_before_what_does_not_fit(file):
    save_checkpoint(file, {"w": jnp.ones(3), "v": jnp.ones(3)})
    file.write_bytes(file.read_bytes().replace(b'"v"', b'"u"'))
    with pytest.raises(CheckpointError, match="is damaged"):
        load_checkpoint(file, {"w": jnp.ones(3), "v": jnp.ones(3)})


def test_a_file_that_is_replaced_while_it_is_opened_is_read_as_one(file, monkeypatch):
    save_checkpoint(file, {"old": jnp.ones(2)})
    judge = safetensors.safe_open
    calls = []

    def replaced_first(*args, **kwargs):
        if not calls:
            save_checkpoint(file, {"new": jnp.zeros(3)})
        calls.append(args)
        return judge(*args, **kwargs)

    monkeypatch.setattr(safetensors, "safe_open", replaced_first)
    assert load_checkpoint(file, {"new": jnp.ones(3)})["new"].tolist() == [0, 0, 0]
    assert len(calls) == 2


# --- files of other programs -----------------------------------------------------------------------------------------


@pytest.fixture
def foreign(file):
    arrays = {
        "model.layers.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "model.layers.0.bias": np.ones(2, np.float16),
        "model.layers.1.weight": np.ones((3, 2), np.float32),
        "step": np.array(7, np.int64),
        "ids": np.arange(3),
        "key": np.array([0, 5], np.uint32),
    }
    safetensors.numpy.save_file(arrays, file, metadata={"format": "np"})
    return file


def like_foreign():
    layer = {"weight": jnp.zeros((2, 3)), "bias": jnp.zeros(2)}
    return {"layers": [layer], "step": 0, "ids": jnp.zeros(3, int), "key": jax.random.key(0)}


def check_foreign(tree):
    assert tree["layers"][0]["weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tree["layers"][0]["bias"].dtype == jnp.float32
    assert (tree["step"], tree["ids"].tolist(), tree["key"]) == (7, [0, 1, 2], jax.random.key(5))


def test_files_of_other_programs_load_renamed_and_cast(foreign):
    rename = {"model.layers.0": "layers[0]", "model.layers.1": None}
    check_foreign(load_checkpoint(foreign, like_foreign(), rename=rename, dtype="like"))


def test_a_function_may_rename(foreign):
    def rename(name):
        *_, number, last = ["", "", *name.split(".")]
        return (f"layers[0].{last}" if number == "0" else None) if number else last

    check_foreign(load_checkpoint(foreign, like_foreign(), rename=rename, dtype="like"))


def test_a_partial_load_says_what_was_missing_and_what_was_left_over(foreign):
    like = {"layers": {"weight": jnp.zeros((2, 3)), "scale": jnp.full(2, 9.0)}, "step": -1, "new": -2}
    tree, report = load_checkpoint(foreign, like, rename={"model.layers.0": "layers"}, partial=True)
    assert report.missing == ("layers.scale", "new")
    assert report.left_over == ("ids", "key", "model.layers.0.bias", "model.layers.1.weight")
    assert (tree["step"], tree["new"], tree["layers"]["scale"].tolist()) == (7, -2, [9, 9])
    assert tree["layers"]["weight"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_what_does_not_fit_is_an_error_in_a_partial_load_too(foreign):
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(foreign, {"w": jnp.zeros(4)}, rename={"model.layers.0.weight": "w"}, partial=True)
    assert error.value.at == ("w: float32[2,3] (in the file: model.layers.0.weight), not float32[4]",)


def test_without_partial_a_foreign_file_is_loaded_whole(foreign):
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(foreign, {"step": 0, "more": 0, "key": jnp.zeros(2, jnp.uint32)})
    assert "model.layers.0.weight: float32[2,3], not nothing" in error.value.at
    assert "more: nothing, not Python int" in error.value.at
    assert "partial=True" in str(error.value)


def test_a_dtype_that_jax_has_not_is_named(file):
    file.write_bytes(written({"a": entry(0, 3, "F6_E2M3", [4])}, b"123"))
    with pytest.raises(CheckpointError, match=r"safetensors' dtype F6_E2M3, which JAX does not have\n  at: a"):
        load_checkpoint(file, {"a": jnp.zeros(4)})


# --- long files ------------------------------------------------------------------------------------------------------


def test_arrays_longer_than_a_chunk_come_back(file, monkeypatch):
    from weft.modules.checkpoints import format as checkpoint_format

    monkeypatch.setattr(checkpoint_format, "CHUNK", 64)
    shape = (7, 11)
    size = math.prod(shape)
    tree = {
        "whole": jnp.arange(size).reshape(shape),
        "turned": np.arange(size).reshape(shape).T[::-1],
        "cast": np.arange(size, dtype=np.float64),
        "long": np.array(["a long text", "b"], "<U40"),
    }
    save_checkpoint(file, tree)
    like = {**tree, "whole": jnp.zeros(shape, int), "cast": jnp.zeros(size)}
    restored = load_checkpoint(file, like, dtype="like")
    assert {name: np.asarray(array).tolist() for name, array in restored.items()} == {
        name: np.asarray(array).tolist() for name, array in tree.items()
    }
