"""Dropout: the draws of flax for the same key; no key needed where nothing is dropped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from weft import inference_mode
from weft.core.records.keys import Keys, SeedError
from weft.errors import AxisError, ConfigError
from weft.modules import Dropout, DropPath

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
    with pytest.raises(ConfigError, match="rate must be a probability"):
        Dropout(rate)


@pytest.mark.parametrize("batch_axes", [0, 1, 2])
def test_drop_path_drops_whole_examples(batch_axes):
    x = jax.random.normal(jax.random.key(0), (6, 5, 4)) + 5
    y = DropPath(0.4, batch_axes=batch_axes)(x, key=KEY)
    theirs = nnx.Dropout(0.4, broadcast_dims=tuple(range(batch_axes, 3)))(x, rngs=KEY)
    np.testing.assert_array_equal(y, theirs)
    ratios = np.asarray(y / x).reshape(*x.shape[:batch_axes], -1)
    np.testing.assert_allclose(ratios, np.broadcast_to(ratios[..., :1], ratios.shape), rtol=1e-5)
    assert set(np.unique(ratios.round(3))) <= {0.0, np.float32(1.667)}


def test_drop_path_keeps_the_mean_and_drops_nothing_in_inference():
    x, layer = jnp.ones((20_000, 1)), DropPath(0.3)
    np.testing.assert_allclose(layer(x, key=KEY).mean(), 1.0, atol=0.02)
    assert inference_mode(layer)(x) is x
    assert DropPath(0.0)(x) is x


def test_a_drop_path_that_makes_no_sense_is_refused(unchecked):
    with pytest.raises(ConfigError, match="DropPath: rate must be a probability, not 2"):
        DropPath(2)
    with pytest.raises(ConfigError, match="DropPath: batch_axes must be the number of leading batch axes, not -1"):
        DropPath(0.5, batch_axes=-1)


def test_drop_path_refuses_an_input_with_fewer_axes_than_its_batch():
    # Elements would be dropped on their own, as by `Dropout`.
    with pytest.raises(AxisError, match="a batch of a DropPath with batch_axes=2 has 2 axes"):
        DropPath(0.5, batch_axes=2)(jnp.ones(8), key=KEY)
    with pytest.raises(SeedError, match="DropPath draws from a typed key, not from nothing"):
        DropPath(0.5)(jnp.ones(3))
