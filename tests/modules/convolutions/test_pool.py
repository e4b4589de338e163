"""Pooling: equal to flax's, and for integers too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from weft.core import AxisError
from weft.modules import avg_pool, max_pool, min_pool

POOLS = [(max_pool, nnx.max_pool), (min_pool, nnx.min_pool), (avg_pool, nnx.avg_pool)]


@pytest.mark.parametrize(("ours", "theirs"), POOLS)
@pytest.mark.parametrize("padding", ["VALID", "SAME", ((1, 0), (0, 1))])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_pools_equal_flax(ours, theirs, padding, batch):
    x = jax.random.normal(jax.random.key(0), (*batch, 5, 6, 2))
    actual = ours(x, (2, 3), strides=(2, 1), padding=padding)
    # With two batch axes, flax refuses pairs of padding.
    expected = theirs(x.reshape(-1, 5, 6, 2), (2, 3), strides=(2, 1), padding=padding)
    np.testing.assert_allclose(actual, expected.reshape(actual.shape), rtol=1e-6)


@pytest.mark.parametrize("batch", [(2,), (2, 3)])
def test_padding_may_be_left_out_of_the_mean(batch):
    x = jax.random.normal(jax.random.key(0), (*batch, 5, 6, 2))
    ours = avg_pool(x, (2, 2), padding="SAME", count_include_pad=False)
    np.testing.assert_allclose(ours, nnx.avg_pool(x, (2, 2), padding="SAME", count_include_pad=False), rtol=1e-6)


def test_integers_pool_too():
    x = jnp.array([[3], [-5], [4], [1]])
    assert max_pool(x, (2,), strides=2).ravel().tolist() == [3, 4]
    assert min_pool(x, (2,), strides=2).ravel().tolist() == [-5, 1]


def test_pools_can_be_differentiated():
    gradient = jax.grad(lambda x: max_pool(x, (2,), strides=2).sum())(jnp.array([[1.0], [2.0], [4.0], [3.0]]))
    assert gradient.ravel().tolist() == [0.0, 1.0, 1.0, 0.0]


def test_too_few_axes_are_named():
    with pytest.raises(AxisError, match="a window of 2 axes needs 2 spatial axes and one of features, not 2 axes"):
        max_pool(jnp.ones((4, 4)), (2, 2))
