"""Layers made outside of traces: one compiled call, and numbers that are those of initialisers, to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jax.nn import initializers
from weft.core.caches import tables
from weft.core.records.keys import SeedError
from weft.modules.drawing import draw, parameter_keys

KEY = jax.random.key(3)
INITIALISERS = {
    "lecun_normal": initializers.lecun_normal(),
    "he_uniform, two axes": initializers.he_uniform(in_axis=(0, 1)),
    "zeros": initializers.zeros,
    "normal": initializers.normal(),  # which is called as it is
    "of the user's own": lambda key, shape, dtype: jax.random.normal(key, shape, dtype) + 1,
}


def bits(array):
    return np.asarray(array).tobytes()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", INITIALISERS)
def test_numbers_are_those_of_the_initialiser_called_by_itself(name, dtype):
    init = INITIALISERS[name]
    first, nothing, last = draw(KEY, "a layer", (init, (9, 7, 2), dtype), None, (initializers.ones, (4,), dtype))
    own = jax.random.split(KEY, 3)
    assert first.dtype == dtype
    assert bits(first) == bits(init(own[0], (9, 7, 2), dtype))
    assert nothing is None
    assert last.tolist() == [1.0] * 4


def test_keys_of_parts_are_those_of_split():
    keys = parameter_keys(KEY, 3)
    assert [bits(jax.random.key_data(key)) for key in keys] == [
        bits(jax.random.key_data(key)) for key in jax.random.split(KEY, 3)
    ]


def test_an_initialiser_made_anew_for_each_layer_is_compiled_once():
    def made():
        return next(table.size() for table in tables() if table.name == "weft.modules.drawing._compiled")

    weft.Linear(5, 9, kernel_init=initializers.he_normal(), key=KEY)
    before = made()
    weft.Linear(5, 9, kernel_init=initializers.he_normal(), key=KEY)
    assert made() == before


def test_layers_in_traces_have_the_same_numbers_and_stand_there_as_they_were_written():
    def kernel(key):
        return weft.Linear(3, 4, key=key).kernel

    mapped = jax.vmap(kernel)(jax.random.split(KEY, 2))
    assert bits(mapped[1]) == bits(kernel(jax.random.split(KEY, 2)[1]))
    assert "_of_makes" not in str(jax.make_jaxpr(lambda x: x @ kernel(KEY))(jnp.ones(3)))


def test_what_has_been_put_in_the_place_of_a_function_of_jax_is_called(monkeypatch):
    weft.Linear(2, 3, key=KEY)

    def ones(key, lower, upper, shape, dtype, out_sharding=None):
        return jnp.ones(shape, dtype)

    monkeypatch.setattr(jax.random.truncated_normal, "__code__", ones.__code__)
    assert len(set(weft.Linear(2, 3, key=KEY).kernel.ravel().tolist())) == 1


@pytest.mark.parametrize("make", [weft.Linear, weft.Embed, lambda *sizes, key: weft.Conv1d(*sizes, 3, key=key)])
def test_a_layer_without_a_key_is_refused_and_a_norm_needs_none(make):
    with pytest.raises(SeedError, match="draws its parameters from a typed key"):
        make(2, 3, key=None)
    assert weft.LayerNorm(3).scale.tolist() == [1.0] * 3
