"""Parallel: the same for each layer, outputs as a tuple or merged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.core import SuccessorError
from weft.modules import Linear, Parallel, StatefulParallel

from ..layers import KEY, Counted, Dense, X


def test_each_layer_is_given_the_same_and_outputs_come_in_a_tuple():
    layers = (Linear(4, 2, key=KEY), jnp.sin)
    outputs = Parallel(*layers)(X)
    assert type(outputs) is tuple
    for layer, y in zip(layers, outputs, strict=True):
        np.testing.assert_array_equal(y, layer(X))


@pytest.mark.parametrize("merge", [sum, jnp.stack, lambda ys: jnp.concatenate(ys, -1)], ids=["sum", "stack", "own"])
def test_outputs_are_merged_by_a_function_of_their_tuple(merge):
    layers = (Dense(key=KEY), jnp.sin)
    np.testing.assert_allclose(
        weft.jit(Parallel(*layers, merge=merge))(X), merge(tuple(layer(X) for layer in layers)), rtol=1e-5, atol=1e-6
    )


def test_each_layer_that_wants_a_key_gets_one_of_its_own():
    a, b = jax.random.split(KEY)
    layer = Dense(key=KEY)
    first, _, second = Parallel(layer, jnp.sin, layer)(X, key=KEY)
    np.testing.assert_array_equal(first, layer(X, key=a))
    np.testing.assert_array_equal(second, layer(X, key=b))


def test_a_stateful_layer_in_a_pure_parallel_is_named():
    with pytest.raises(SuccessorError, match=r"a Counted is stateful(.|\n)*layers\[1\](.|\n)*StatefulParallel"):
        Parallel(jnp.sin, Counted(key=KEY))(X)


def test_a_stateful_parallel_returns_the_successor_of_every_layer():
    model = StatefulParallel(Counted(key=KEY), jnp.sin, merge=sum)
    y, after = weft.jit(lambda model, x: model(x))(model, X)
    np.testing.assert_allclose(y, model[0](X)[0] + jnp.sin(X), rtol=1e-6)
    assert float(after[0].calls) == 1.0
    pure = StatefulParallel(jnp.sin)
    assert pure(X)[1] is pure
