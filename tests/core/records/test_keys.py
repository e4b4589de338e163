"""Keys: flax's numbers, draws that never repeat, and an error for those that would."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from weft.core import AxisError, KeyReuseError, RngCount, RngKey, drop, merge, select, split
from weft.core.records.keys import Keys, KeyStream, SeedError, StreamError, debug_keys


def data(key):
    return np.asarray(jax.random.key_data(key)).tolist()


@given(st.lists(st.sampled_from(["default", "params", "dropout", "noise"]), max_size=12))
def test_draws_are_those_of_flax(names):
    keys, rngs = Keys(0, params=1, dropout=jax.random.key(2)), nnx.Rngs(0, params=1, dropout=jax.random.key(2))
    for name in names:
        key, keys = keys.next(name)
        assert data(key) == data(rngs[name]())


@given(st.lists(st.sampled_from(["a", "b", "fork", "split"]), max_size=8))
def test_no_two_draws_are_alike(steps):
    keys, seen = Keys(0, a=1), []
    for step in steps:
        if step == "fork":
            forked, keys = keys.fork()
            seen += [data(forked.next("a")[0]), data(forked.next("b")[0])]
        elif step == "split":
            stacked, keys = keys.split(2, "a")
            seen += data(stacked)
        else:
            key, keys = keys.next(step)
            seen.append(data(key))
    assert len({tuple(key) for key in seen}) == len(seen)


def test_forked_streams_are_those_of_flax():
    keys, rngs = Keys(0, noise=1), nnx.Rngs(0, noise=1)
    forked, keys = keys.fork({"noise": 3, ...: (2, 2)})
    theirs = rngs.split({"noise": 3, ...: (2, 2)})
    assert data(forked.streams["noise"].key) == data(theirs.noise.key[...])
    assert data(forked.streams["default"].key) == data(theirs.default.key[...])
    assert forked.streams["default"].count.shape == (2, 2)
    assert data(keys.next()[0]) == data(rngs())


def test_streams_a_mapping_does_not_name_are_forked_without_an_axis():
    forked, _ = Keys(0, noise=1).fork({"noise": 3})
    assert forked.streams["noise"].key.shape == (3,)
    assert forked.streams["default"].key.shape == ()


def test_split_is_a_split_of_one_draw():
    stacked, after = Keys(0).split((2, 3))
    assert data(stacked) == data(jax.random.split(Keys(0).next()[0], (2, 3)))
    assert after.streams["default"].count == 1


def test_calling_is_drawing():
    assert data(Keys(0, a=1)("a")[0]) == data(Keys(0, a=1).next("a")[0])


def test_seeds_may_be_integers_keys_streams_or_a_mapping():
    one = Keys(1).streams["default"]
    assert isinstance(one, KeyStream)
    made = [Keys(1), Keys(np.int64(1)), Keys(jnp.uint32(1)), Keys(jax.random.key(1)), Keys(one), Keys({"default": 1})]
    assert len({tuple(data(keys.next()[0])) for keys in made}) == 1
    assert "default" in made[0]
    assert "other" not in made[0]


def test_keys_and_counts_have_their_kinds():
    structure, keys, counts = split(Keys(0, a=1), RngKey, RngCount)
    assert [leaf.dtype for leaf in jax.tree.leaves(counts)] == [jnp.uint32] * 2
    assert len(jax.tree.leaves(select(Keys(0), RngKey))) == 1
    assert data(merge(structure, keys, counts).next()[0]) == data(Keys(0).next()[0])


def test_keys_draw_in_jit_scan_vmap_and_grad():
    expected, keys = [], Keys(0)
    for _ in range(3):
        key, keys = keys.next()
        expected.append(data(key))

    def body(keys, _):
        key, keys = keys.next()
        return keys, jax.random.key_data(key)

    after, drawn = jax.jit(lambda keys: jax.lax.scan(body, keys, None, length=3))(Keys(0))
    assert np.asarray(drawn).tolist() == expected
    assert after.streams["default"].count == 3

    forked, _ = Keys(0).fork(3)
    mapped = jax.vmap(lambda keys: keys.next()[0])(forked)
    one = jax.tree.map(lambda leaf: leaf[1], forked)
    assert data(mapped[1]) == data(one.next()[0])

    gradient = jax.grad(lambda x: x * jax.random.uniform(Keys(0).next()[0]))(1.0)
    assert gradient == jax.random.uniform(Keys(0).next()[0])


BAD_SEEDS = [
    (1.5, "a float cannot seed stream 'default'"),
    (True, "a bool cannot seed stream 'default'"),
    ("0", "a str cannot seed stream 'default'"),
    (np.zeros(2, np.uint32), "a legacy uint32 key cannot seed stream 'default'(.|\n)*wrap_key_data"),
    (jnp.ones(3), "float32 cannot seed stream 'default'(.|\n)*jax.random.key"),
]


@pytest.mark.parametrize(("seed", "message"), BAD_SEEDS)
def test_bad_seeds_are_refused(seed, message):
    with pytest.raises(SeedError, match=message):
        Keys(seed)


def test_two_seeds_for_one_stream_are_refused():
    with pytest.raises(SeedError, match="two seeds for one stream: 'a'"):
        Keys({"a": 1}, a=2)


def test_unknown_streams_are_named_with_the_known_ones():
    with pytest.raises(StreamError, match=r"no random stream 'b'\n  at: the streams are \['a'\]"):
        Keys(a=1).next("b")
    with pytest.raises(StreamError, match="no random stream 'b'"):
        Keys(0).fork({"b": 2})
    with pytest.raises(LookupError):
        Keys().next()


def test_a_forked_stream_does_not_draw_outside_vmap():
    forked, _ = Keys(0).fork(3)
    with pytest.raises(AxisError, match=r"stream 'default' holds \(3,\) keys, and a draw takes one"):
        forked.next()


def draw_twice(keys):
    return keys.next("noise")[0], keys.next("noise")[0]


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, lambda f: jax.vmap(f, axis_size=2, in_axes=None)])
def test_debugging_names_the_stream_and_both_places(transform):
    with debug_keys(), pytest.raises(KeyReuseError) as error:
        transform(draw_twice)(Keys(0))
    assert "the same key of stream 'default' is drawn twice" in str(error.value)
    assert "Keys.streams['default'].count: " in str(error.value)
    assert "test_keys.py:" in str(error.value)


def test_debugging_finds_a_copy_of_the_same_draw_and_one_inside_a_transform():
    keys = Keys(0)
    with debug_keys():
        keys.next()
        with pytest.raises(KeyReuseError):
            jax.tree.map(lambda leaf: leaf, keys).next()
        with pytest.raises(KeyReuseError):
            jax.jit(lambda x: x + jax.random.uniform(keys.next()[0]))(1.0)


def test_debugging_allows_successors_forks_and_functions_traced_again():
    keys = Keys(0)

    def closed_over(x):
        return x * jax.random.uniform(drop(keys.next())[0])

    with debug_keys():
        jax.eval_shape(closed_over, 1.0)
        jax.jit(closed_over)(1.0)
        _, after = keys.next()
        after.fork(2)


def test_debugging_is_off_outside_and_can_be_turned_off_inside():
    with debug_keys(enabled=False):  # whatever the environment says
        draw_twice(Keys(0))
        with debug_keys(), debug_keys(enabled=False):
            draw_twice(Keys(0))


def test_debugging_keeps_no_tracer_alive(checking_leaks):
    with checking_leaks(), debug_keys():
        jax.jit(lambda keys: keys.next())(Keys(0))
