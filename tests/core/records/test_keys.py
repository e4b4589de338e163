"""Keys: flax's numbers, draws that never repeat, and an error for those that would."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from flax import nnx
from hypothesis import given
from weft import drop_successor
from weft.core import RngCount, RngKey
from weft.core.records.keys import Keys, KeyStream, SeedError, StreamError, debug_keys
from weft.errors import AxisError, KeyReuseError
from weft.tree import merge, select, split


@pytest.fixture(autouse=True)
def successors_may_be_lost():
    """These are about keys, and forget their streams' successors on purpose."""
    with weft.debug.debug_successors(False):
        yield


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
    stream = Keys(1).streams["default"]
    assert isinstance(stream, KeyStream)
    made = [
        Keys(1),
        Keys(np.int64(1)),
        Keys(jnp.uint32(1)),
        Keys(jax.random.key(1)),
        Keys(stream),
        Keys({"default": 1}),
    ]
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
    second_fork = jax.tree.map(lambda leaf: leaf[1], forked)
    assert data(mapped[1]) == data(second_fork.next()[0])

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
        return x * jax.random.uniform(drop_successor(keys.next())[0])

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


# --- programs that use a key again, each with its twin that does not -------------------------------------------------


class Noisy(weft.Module):
    keys: Keys

    def __call__(self, x):
        key, keys = self.keys.next()
        return x + noise(key), self.replace(keys=keys)


def noise(key):
    return jax.random.normal(key)


def drawn(keys):
    key, keys = keys.next()
    return noise(key), keys


XS = jnp.ones(3)


def _twice(step):
    """Called twice with the same keys, and twin: with the successor."""

    def program(keys):
        step(keys), step(keys)

    def twin(keys):
        _, keys = step(keys)
        step(keys)

    return program, twin


def _keys_of(pair):
    return pair[0], pair[1].keys


def _in_a_loop(run):
    """`run(step, keys)` loops: over a step that draws from the same keys, and twin: that carries them."""

    def program(keys):
        run(lambda _, x: (drop_successor(drawn(keys))[0] + x, _), keys)

    def twin(keys):
        run(lambda keys, x: (lambda y, keys: (y + x, keys))(*drawn(keys)), keys)

    return program, twin


def _scanned(scan):
    def run(step, keys):
        return scan(lambda carry, x: step(carry, x)[::-1])(keys, XS)

    return run


def _while(step, keys):
    return weft.while_loop(lambda c: c[1] < 2, lambda c: (step(c[0], c[1])[1], c[1] + 1), (keys, 0))


PROGRAMS = {
    "eagerly": _twice(drawn),
    "jit, called twice": _twice(weft.jit(drawn)),
    "jit of vmap, called twice": _twice(weft.jit(weft.vmap(drawn, in_axes=None, out_axes=(0, None), axis_size=2))),
    "grad, called twice": _twice(lambda keys: weft.value_and_grad(lambda w, k: drawn(k), has_aux=True)(1.0, keys)[0]),
    "remat, called twice": _twice(weft.remat(drawn)),
    "cond, called twice": _twice(lambda keys: weft.cond(True, drawn, drawn, keys)),
    "scan, called twice": _twice(
        lambda keys: weft.scan(lambda k, x: drawn(k)[::-1], in_axes=(weft.Carry, 0))(keys, XS)[::-1]
    ),
    "a method, called twice": _twice(lambda keys: _keys_of(weft.jit(Noisy.__call__)(Noisy(keys), 1.0))),
    "a record, called twice": _twice(lambda keys: _keys_of(weft.jit(Noisy(keys))(1.0))),
    "jit, then eagerly": (
        lambda keys: (weft.jit(drawn)(keys), keys.next()),
        lambda keys: weft.jit(drawn)(keys)[1].next(),
    ),
    "eagerly, then in jit": (
        lambda keys: (keys.next(), weft.jit(drawn)(keys)),
        lambda keys: weft.jit(drawn)(keys.next()[1]),
    ),
    "closed over by scan": _in_a_loop(_scanned(weft.scan)),
    "closed over by jax.lax.scan": _in_a_loop(_scanned(lambda step: lambda keys, xs: jax.lax.scan(step, keys, xs))),
    "closed over by scan in jit": _in_a_loop(lambda step, keys: weft.jit(lambda k: _scanned(weft.scan)(step, k))(keys)),
    "closed over by jit in scan": _in_a_loop(lambda step, keys: _scanned(weft.scan)(weft.jit(step), keys)),
    "closed over by vmap in scan": _in_a_loop(
        lambda step, keys: _scanned(weft.scan)(
            lambda k, x: weft.vmap(step, in_axes=(None, 0), out_axes=(0, None))(k, jnp.ones(2) * x), keys
        )
    ),
    "closed over by fori_loop": _in_a_loop(lambda step, keys: weft.fori_loop(0, 3, lambda i, k: step(k, i)[1], keys)),
    "closed over by while_loop": _in_a_loop(_while),
    "closed over by cond in fori_loop": _in_a_loop(
        lambda step, keys: weft.fori_loop(
            0, 3, lambda i, k: weft.cond(i > 0, lambda k: step(k, i)[1], lambda k: drawn(k)[1], k), keys
        )
    ),
    "closed over by a compiled function": (
        lambda keys: [weft.jit(lambda x: x + drop_successor(drawn(keys))[0])(x) for x in (1.0, 2.0)],
        lambda keys: [weft.jit(lambda x, k: x + drawn(k)[0])(x, Keys(i)) for i, x in enumerate((1.0, 2.0))],
    ),
    "closed over by a compiled function that is called twice": (
        lambda keys: (lambda f: (f(1.0), f(2.0)))(weft.jit(lambda x: x + drop_successor(drawn(keys))[0])),
        lambda keys: (lambda f: (f(1.0, keys), f(2.0, Keys(1))))(weft.jit(lambda x, k: x + drawn(k)[0])),
    ),
    "the same for all steps of scan": (
        lambda keys: weft.scan(lambda c, k: (drawn(k)[0], c), in_axes=(weft.Carry, None), length=3)(0.0, keys),
        lambda keys: weft.scan(lambda c, k: (drawn(k)[0], c))(0.0, keys.fork(3)[0]),
    ),
    "carried as it was": (
        lambda keys: weft.scan(lambda k, x: (k, drawn(k)[0]))(keys, XS),
        lambda keys: weft.scan(lambda k, x: drawn(k)[::-1])(keys, XS),
    ),
    "split, then drawn from": (
        lambda keys: (keys.split(3), keys.next()),
        lambda keys: keys.split(3)[1].next(),
    ),
    "forked, then drawn from": (
        lambda keys: (weft.vmap(drawn)(keys.fork(2)[0]), keys.next()),
        lambda keys: (lambda forked, keys: (weft.vmap(drawn)(forked), keys.next()))(*keys.fork(2)),
    ),
    "forks, mapped over twice": (
        lambda keys: (lambda forked: (weft.vmap(drawn)(forked), weft.vmap(drawn)(forked)))(keys.fork(2)[0]),
        lambda keys: weft.vmap(drawn)(weft.vmap(drawn)(keys.fork(2)[0])[1]),
    ),
    "a copy": (
        lambda keys: (keys.next(), jax.tree.map(lambda leaf: leaf, keys).next()),
        lambda keys: (keys.next()[1]).next(),
    ),
    "a key that two samplers take": (
        lambda keys: (lambda key: (noise(key), jax.random.uniform(key)))(keys.next()[0]),
        lambda keys: (lambda a, b: (noise(a), jax.random.uniform(b)))(*jax.random.split(keys.next()[0])),
    ),
    "a key that is split and sampled from": (
        lambda keys: (lambda key: (jax.random.split(key), noise(key)))(keys.next()[0]),
        lambda keys: (lambda a, b: (jax.random.split(a), noise(b)))(*jax.random.split(keys.next()[0])),
    ),
    "a key that a loop closes over": (
        lambda keys: (lambda key: weft.scan(lambda c, x: (c, noise(key)))(0.0, XS))(keys.next()[0]),
        lambda keys: (lambda keys: weft.scan(lambda c, key: (c, noise(key)))(0.0, keys))(keys.split(3)[0]),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_debugging_finds_every_key_that_is_used_again_and_none_that_is_not(name):
    wrong, right = PROGRAMS[name]
    with debug_keys(enabled=False):
        right(Keys(0))  # traced before, without the ledger
        wrong(Keys(3))
    with debug_keys():
        right(Keys(0))
        right(Keys(1))
        with pytest.raises((KeyReuseError, jax.errors.KeyReuseError)):
            wrong(Keys(2))
