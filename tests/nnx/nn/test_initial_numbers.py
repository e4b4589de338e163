"""Layers made outside of traces: their numbers come from one compiled call, and are JAX's to the bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from weft import nnx
from weft.core.caches import tables
from weft.nnx.nn import initializers

INITIALIZERS = {
    "lecun_normal": initializers.lecun_normal(),
    "he_uniform": initializers.he_uniform(),
    "xavier_uniform over two axes": initializers.xavier_uniform(in_axis=(0, 1)),
    "reshaped": functools.partial(initializers.reshaped, initializers.glorot_normal(), (96, 7)),
    "zeros": initializers.zeros,
    "ones": initializers.ones_init(),
    "normal": initializers.normal(),
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", INITIALIZERS)
def test_numbers_are_those_of_the_initializer_called_by_itself(name, dtype):
    init, rngs = INITIALIZERS[name], nnx.Rngs(3)
    param = nnx.nn.linear.make_param(init, rngs, (96, 7, 1), dtype, {})
    key = jax.random.fold_in(jax.random.key(3), 0)
    expected = init(key, (96, 7, 1), dtype)
    assert param[...].dtype == expected.dtype
    assert np.asarray(param[...]).tobytes() == np.asarray(expected).tobytes()
    assert int(rngs.default.count[...]) == 1


def test_an_initializer_made_anew_for_each_layer_is_compiled_once():
    def made():
        return next(table.size() for table in tables() if table.name.endswith("initializers._compiled"))

    rngs = nnx.Rngs(0)
    nnx.Linear(5, 9, kernel_init=nnx.initializers.he_normal(), rngs=rngs)
    before = made()
    for _ in range(3):
        nnx.Linear(5, 9, kernel_init=nnx.initializers.he_normal(), rngs=rngs)
    assert made() == before


def test_streams_that_are_watched_or_split_are_drawn_from_as_ever():
    seen = []
    with pytest.warns(UserWarning, match="hooks"):
        count = nnx.RngCount(jnp.uint32(0), tag="params", on_set_value=lambda _, value: (seen.append(1), value)[1])
    rngs = nnx.Rngs(params=0)
    rngs.params.count = count
    nnx.Linear(2, 3, rngs=rngs)
    assert len(seen) == 2
    layers = nnx.vmap(lambda rngs: nnx.Linear(2, 3, rngs=rngs))(nnx.Rngs(0).split(4))
    assert layers.kernel.shape == (4, 2, 3)


def test_a_refused_shape_draws_no_key():
    rngs = nnx.Rngs(0)
    with pytest.raises(ValueError, match="input and output sizes"):
        nnx.nn.linear.make_param(nnx.initializers.lecun_normal(), rngs, (3,), jnp.float32, {})
    assert int(rngs.default.count[...]) == 0


def numbers(seed):
    return nnx.Linear(2, 3, rngs=nnx.Rngs(seed)).kernel[...].tolist()


def test_a_function_that_is_changed_in_place_draws_the_numbers(monkeypatch):
    numbers(0)

    def ones(key, lower, upper, shape, dtype, out_sharding=None):
        return jnp.ones(shape, dtype)

    monkeypatch.setattr(jax.random.truncated_normal, "__code__", ones.__code__)
    assert len({number for row in numbers(0) for number in row}) == 1


def test_a_replaced_fold_in_gives_the_keys(monkeypatch):
    before, real = numbers(1), jax.random.fold_in
    assert numbers(0) != before
    monkeypatch.setattr(jax.random, "fold_in", lambda key, count: real(jax.random.key(1), count))
    assert numbers(0) == before
