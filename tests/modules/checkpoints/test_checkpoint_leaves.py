"""Leaves in checkpoints: every bit comes back, as what it was."""

import io
import os
import subprocess
import sys

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from jax.sharding import NamedSharding, PartitionSpec
from weft.core.records.keys import Keys
from weft.modules import CheckpointError, Linear, load_checkpoint, save_checkpoint

pytestmark = pytest.mark.slow

FLOATS = ["float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
RARE = ["float8_e8m0fnu", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"]
OF_JAX = [*FLOATS, *RARE, "int8", "uint8", "int16", "uint16", "int32", "uint32", "complex64"]
OF_NUMPY = [*OF_JAX, "int64", "uint64", "float64", "complex128", ">f4", ">i2", "<U3", "S2", "datetime64[s]"]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "state.safetensors"


@pytest.fixture
def loaded(file):
    def load(saved, like, **options):
        save_checkpoint(file, saved)
        return load_checkpoint(file, like, **options)

    return load


def bits(leaf):
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return str(leaf.dtype), bits(jax.random.key_data(leaf))
    if isinstance(leaf, np.ndarray | np.generic | jax.Array):
        return type(leaf), str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes()
    return type(leaf), np.asarray(leaf).tobytes() if isinstance(leaf, float | complex) else leaf


@st.composite
def arrays(draw):
    dtype = draw(st.sampled_from(OF_NUMPY))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    size = int(np.prod(shape)) * jnp.dtype(dtype).itemsize
    # Random bytes: infinities, payloads of NaNs and denormal numbers among them.
    seed = draw(st.binary(min_size=1, max_size=40))
    # Not every number is a letter.
    data = b"A\0\0\0" * size if dtype == "<U3" else seed * size
    array = np.frombuffer(data[:size], np.uint8).view(jnp.dtype(dtype)) if size else np.empty(0, dtype)
    array = array.reshape(shape)
    how = draw(st.sampled_from(["jax", "numpy", "reversed", "transposed", "scalar"]))
    if how == "jax" and dtype in OF_JAX:
        return jnp.asarray(array)
    if how == "reversed" and shape:
        return array[::-1]
    if how == "transposed":
        return array.T
    return array[()] if how == "scalar" and not shape else array


LEAVES = st.one_of(
    arrays(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.none(),
    st.text(max_size=3),
    st.sampled_from([jnp.zeros((2, 0), bool), jnp.ones((), bool), jnp.ones(3, jnp.int4), jnp.ones(2, jnp.uint2)]),
    st.sampled_from([jax.random.key(3), jax.random.key(1, impl="rbg"), jax.random.key(2, impl="unsafe_rbg")]),
    st.just(jnp.asarray(2.0)),
)
NAMES = st.text(max_size=4)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3), st.tuples(inner)),
    max_leaves=6,
)


@given(tree=TREES)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_tree_comes_back_bit_for_bit(tree, file):
    save_checkpoint(file, tree)
    restored = load_checkpoint(file, tree)
    assert jax.tree.structure(restored) == jax.tree.structure(tree)
    before, after = jax.tree.leaves(tree), jax.tree.leaves(restored)
    assert [bits(leaf) for leaf in after] == [bits(leaf) for leaf in before]
    weak = [[getattr(leaf, "weak_type", None) for leaf in leaves] for leaves in (before, after)]
    assert weak[0] == weak[1]


def test_what_other_readers_of_the_format_see_is_what_was_saved(file):
    names = ["bool", *FLOATS, "int8", "uint16", "int32", "uint32", "complex64"]
    tree = {name: jnp.ones((2, 3), name) for name in names} | {"t": np.arange(6.0).reshape(2, 3).T}
    save_checkpoint(file, tree)
    tensors = dict(safetensors.deserialize(file.read_bytes()))
    assert {name: bytes(tensors[name]["data"]) for name in tree} == {
        name: np.asarray(array).tobytes() for name, array in tree.items()
    }
    assert [tensors[name]["shape"] for name in tree] == [list(array.shape) for array in tree.values()]


def test_an_abstract_tree_with_keys_and_numbers_is_enough(loaded):
    def make():
        keys = Keys(5, dropout=jax.random.key(6, impl="rbg"))
        key = jax.random.key(7, impl="unsafe_rbg")
        return {"keys": keys, "key": key, "many": jax.random.split(key, 3), "step": 4, "w": Linear(2, 2, key=key)}

    saved = make()
    restored = loaded(saved, jax.eval_shape(make))
    assert [bits(leaf) for leaf in jax.tree.leaves(restored)] == [bits(leaf) for leaf in jax.tree.leaves(saved)]
    assert restored["keys"].next("dropout")[0] == saved["keys"].next("dropout")[0]
    assert type(restored["step"]) is int


def test_an_object_that_jax_takes_for_an_array_is_one(loaded):
    class Wrapped:
        def __jax_array__(self):
            return jnp.arange(3)

    assert loaded({"a": Wrapped()}, {"a": Wrapped()})["a"].tolist() == [0, 1, 2]


def test_keys_of_two_makes_are_told_apart(loaded):
    with pytest.raises(CheckpointError, match=r"k: key<rbg>\[\], not key<urbg>\[\]"):
        loaded({"k": jax.random.key(0, impl="rbg")}, {"k": jax.random.key(0, impl="unsafe_rbg")})


def test_arrays_go_where_those_of_like_were_put(loaded):
    devices = jax.devices()
    mesh = jax.sharding.Mesh(np.array(devices[:4]), "d")
    split, second = NamedSharding(mesh, PartitionSpec("d")), jax.sharding.SingleDeviceSharding(devices[1])
    x = jnp.arange(8.0)
    saved = {"split": jax.device_put(x, split), "put": x, "abstract": x, "free": x, "key": jax.random.key(3)}
    like = {
        "split": jax.device_put(jnp.zeros(8), split),
        "put": jax.device_put(jnp.zeros(8), second),
        "abstract": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=split),
        "free": jnp.zeros(8),
        "key": jax.device_put(jax.random.key(0), second),
    }
    restored = loaded(saved, like)
    assert [restored[name].sharding for name in like] == [like[name].sharding for name in like]
    assert [restored[name].committed for name in like] == [True, True, True, False, True]
    assert all(restored[name].tolist() == x.tolist() for name in like if name != "key")
    assert restored["key"] == saved["key"]


def test_a_loaded_array_can_be_donated_and_changed(loaded):
    restored = loaded({"w": jnp.arange(64.0), "n": np.zeros(2)}, {"w": jnp.zeros(64), "n": np.zeros(2)})
    restored["n"][0] = 1
    moved = jax.jit(lambda w: w + 1, donate_argnums=0)(restored["w"])
    assert moved.tolist() == list(range(1, 65))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([None]), "an array of Python objects cannot be stored"),
        (np.ma.masked_array([1, 2], [0, 1]), "an array with a mask cannot be stored"),
        (jax.ShapeDtypeStruct((2,), jnp.float32), "a ShapeDtypeStruct has no value to store"),
        (jax.new_ref(jnp.ones(2)), "a mutable array cannot be stored"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_path(file, value, message):
    with pytest.raises(CheckpointError, match=rf"{message}\n  at: a\[1\]\n  fix: "):
        save_checkpoint(file, {"a": [jnp.ones(1), value]})
    assert os.listdir(file.parent) == []


def test_saving_inside_of_a_transform_is_refused(file):
    with pytest.raises(CheckpointError, match=r"is being traced has no value to store\n  at: w"):
        jax.jit(lambda w: save_checkpoint(file, {"w": w}))(1.0)


def test_saving_what_was_donated_is_refused(file):
    gone = jnp.ones(2)
    gone.delete()
    with pytest.raises(CheckpointError, match="was donated or deleted\n  at: w"):
        save_checkpoint(file, {"w": gone})


def test_two_arrays_at_one_path_are_refused(file):
    class Key(str):
        def __repr__(self):
            return "'same'"

        __slots__ = ()

    with pytest.raises(CheckpointError, match=r"two arrays have the same path\n  at: \['same'\]"):
        save_checkpoint(file, {Key("a b"): jnp.ones(1), Key("c d"): jnp.ones(1)})


def test_the_name_that_the_format_keeps_for_itself_is_refused(file):
    with pytest.raises(CheckpointError, match=r"reserves this name\n  at: __metadata__"):
        save_checkpoint(file, {"__metadata__": jnp.ones(1)})


def test_wide_arrays_are_not_narrowed_in_silence(loaded):
    wide = np.array([1.0, 2.0])
    with pytest.raises(CheckpointError, match=r"JAX would narrow these arrays to 32 bits\n  at: w: float64"):
        loaded({"w": wide}, {"w": jax.ShapeDtypeStruct((2,), np.float64)})
    assert loaded({"w": wide}, {"w": jnp.zeros(2)}, dtype="like")["w"].dtype == jnp.float32


# --- casting ---------------------------------------------------------------------------------------------------------


def test_a_floating_dtype_is_given_to_every_floating_array(loaded):
    saved = {"w": jnp.ones(2, jnp.bfloat16), "n": jnp.ones(2, int), "np": np.ones(2), "rate": 0.5}
    restored = loaded(
        saved, {"w": jnp.zeros(2), "n": jnp.zeros(2, int), "np": np.zeros(2), "rate": 0.0}, dtype="float16"
    )
    assert {name: str(getattr(value, "dtype", value)) for name, value in restored.items()} == {
        "w": "float16",
        "n": "int32",
        "np": "float16",
        "rate": "0.5",
    }


def test_the_dtypes_of_like_can_be_asked_for(loaded):
    saved = {"w": jnp.ones(2, jnp.float8_e3m4), "n": np.arange(2), "k": jax.random.key(1)}
    like = {"w": jnp.zeros(2, jnp.bfloat16), "n": jnp.zeros(2, jnp.int8), "k": jax.random.key(0)}
    restored = loaded(saved, like, dtype="like")
    assert [str(value.dtype) for value in restored.values()] == ["key<fry>", "int8", "bfloat16"]
    assert restored["w"].tolist() == [1, 1]


def test_casting_never_changes_what_is_no_rounding(loaded):
    with pytest.raises(CheckpointError, match="int8 cannot hold these values of int64\n  at: n"):
        loaded({"n": np.array([300])}, {"n": jnp.zeros(1, jnp.int8)}, dtype="like")
    with pytest.raises(CheckpointError, match=r"n: float32\[1\], not int32\[1\]"):
        loaded({"n": jnp.ones(1)}, {"n": jnp.zeros(1, int)}, dtype="like")
    with pytest.raises(CheckpointError, match=r"n: int32\[1\], not float32\[1\]"):
        loaded({"n": jnp.ones(1, int)}, {"n": jnp.zeros(1)}, dtype="float32")


@pytest.mark.parametrize("dtype", ["int8", "nonsense", complex])
def test_only_floating_dtypes_can_be_given_to_all(loaded, dtype):
    with pytest.raises(CheckpointError, match="is not a floating dtype"):
        loaded({"a": jnp.ones(1)}, {"a": jnp.ones(1)}, dtype=dtype)


# --- memory ----------------------------------------------------------------------------------------------------------

MEMORY = """
import gc, resource, sys
import jax, jax.numpy as jnp, numpy as np, psutil
from weft.modules import load_checkpoint, save_checkpoint
folder, leaves, megabytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def highest():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

def beside(action):
    # What the process had before and has no more would hide what comes: it is filled up.
    gc.collect()
    ballast = np.ones(max(0, highest() - psutil.Process().memory_info().rss), np.uint8)
    before, result = highest(), action()
    print((highest() - before) / (megabytes * 2**20))
    return result

def tree(fill):
    size = megabytes * 2**18 // leaves
    return jax.block_until_ready([fill((size,)) for _ in range(leaves)])

save_checkpoint(folder + "/warm", jnp.ones(3))
load_checkpoint(folder + "/warm", jnp.ones(3))
full = tree(jnp.ones)
beside(lambda: save_checkpoint(folder + "/file", full))
del full
like = [jax.ShapeDtypeStruct((megabytes * 2**18 // leaves,), jnp.float32)] * leaves
found = beside(lambda: load_checkpoint(folder + "/file", like))
assert all(float(leaf[-1]) == 1 for leaf in found)
"""


@pytest.mark.parametrize("leaves", [2, 64])
def test_saving_takes_no_memory_and_loading_that_of_the_file(tmp_path, leaves):
    command = [sys.executable, "-c", MEMORY, str(tmp_path), str(leaves), "128"]
    # One device and no sharing of arrays between tests: a process of its own.
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "XLA_FLAGS": ""}, check=False)
    assert run.returncode == 0, run.stderr
    saving, loading = map(float, io.StringIO(run.stdout))
    assert saving <= 0.2, "of the file's size"
    assert loading <= 1.2, "of the file's size"
