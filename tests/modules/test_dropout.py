"""Dropout: the draws of flax for the same key; no key needed where nothing is dropped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from weft.core.records.keys import Keys, SeedError
from weft.modules import ConfigError, Dropout

KEY = jax.random.key(3)


@pytest.mark.parametrize("broadcast_dims", [(), (0,), (-1,), (0, 1)])
@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_dropout_equals_flax(rate, broadcast_dims, dtype):
    x = jax.random.normal(jax.random.key(0), (4, 5)).astype(dtype)
    ours = Dropout(rate, broadcast_dims=broadcast_dims)(x, key=KEY)
    theirs = nnx.Dropout(rate, broadcast_dims=broadcast_dims)(x, rngs=KEY)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(np.asarray(ours, np.float32), np.asarray(theirs, np.float32))


@pytest.mark.parametrize("layer", [Dropout(0.0), Dropout(0.5, inference=True)])
def test_no_key_is_needed_where_nothing_is_dropped(layer):
    x = jnp.ones(3)
    assert layer(x) is x


def test_the_call_overrides_the_mode():
    layer, x = Dropout(1.0, inference=True), jnp.ones(3)
    assert layer(x, inference=False, key=KEY).sum() == 0


@pytest.mark.parametrize("key", [None, jnp.zeros(2, jnp.uint32), Keys(0)])
def test_training_needs_a_typed_key(key, unchecked):
    with pytest.raises(SeedError, match=r"Dropout draws from a typed key(.|\n)*keys.next"):
        Dropout(0.5)(jnp.ones(3), key=key)


def test_dropping_everything_has_a_finite_gradient():
    gradient = jax.grad(lambda x: Dropout(1.0)(x, key=KEY).sum())(jnp.ones(3))
    np.testing.assert_array_equal(gradient, jnp.zeros(3))


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_a_rate_is_a_probability(rate):
    with pytest.raises(ConfigError, match="rate is a probability"):
        Dropout(rate)
