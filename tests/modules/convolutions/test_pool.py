"""Pooling: equal to flax's, and for integers too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from flax import nnx
from weft.errors import AxisError, ConfigError
from weft.modules import adaptive_avg_pool, adaptive_max_pool, avg_pool, max_pool, min_pool

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


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_adaptive_pooling_covers_every_element_with_bins_like_torch(size):
    x = jax.random.normal(jax.random.key(0), (2, 5, 6, 3))
    for pool, reduce in ((adaptive_avg_pool, np.mean), (adaptive_max_pool, np.max)):
        out = np.asarray(pool(x, (size, 2)))
        assert out.shape == (2, size, 2, 3)
        for i in range(size):
            low, high = int(np.floor(i * 5 / size)), int(np.ceil((i + 1) * 5 / size))
            np.testing.assert_allclose(
                out[:, i, 1], reduce(np.asarray(x)[:, low:high, 3:], (1, 2)), rtol=1e-5, atol=1e-6
            )


def test_adaptive_pooling_refuses_what_makes_no_sense(unchecked):
    with pytest.raises(ConfigError, match="adaptive_avg_pool: sizes must be positive"):
        adaptive_avg_pool(jnp.ones((4, 3)), (0,))
    with pytest.raises(AxisError, match="a window of 2 axes needs 2 spatial axes"):
        adaptive_max_pool(jnp.ones((4, 3)), (1, 1))


X = jax.random.normal(jax.random.key(0), (2, 6, 5, 3))


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (weft.MaxPool((2, 2)), lambda: max_pool(X, (2, 2), strides=2)),
        (weft.MinPool((3, 2), strides=1, padding="SAME"), lambda: min_pool(X, (3, 2), padding="SAME")),
        (weft.AvgPool((2, 3), padding=[(1, 0), (0, 1)]), lambda: avg_pool(X, (2, 3), (2, 3), ((1, 0), (0, 1)))),
        (
            weft.AvgPool((2, 2), padding="SAME", count_include_pad=False),
            lambda: avg_pool(X, (2, 2), 2, "SAME", count_include_pad=False),
        ),
        (weft.AdaptiveAvgPool([2, 3]), lambda: adaptive_avg_pool(X, (2, 3))),
        (weft.AdaptiveMaxPool((1, 1)), lambda: adaptive_max_pool(X, (1, 1))),
    ],
    ids=lambda value: repr(value) if isinstance(value, weft.Module) else "",
)
def test_a_layer_pools_as_its_function_does(layer, expected):
    np.testing.assert_array_equal(weft.Sequential(layer, weft.relu)(X), weft.relu(expected()))
    assert jax.tree.leaves(layer) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: weft.MaxPool(2), r"MaxPool: window=2 does not tell the number of spatial axes"),
        (lambda: weft.AvgPool((2, 0)), "AvgPool: window must be positive"),
        (lambda: weft.MaxPool((2, 2), strides=(1, 1, 1)), "strides"),
        (lambda: weft.AdaptiveAvgPool((0,)), "AdaptiveAvgPool: sizes must be positive"),
    ],
)
def test_a_layer_that_cannot_pool_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_pooling_refuses_the_paddings_that_only_convolutions_have():
    with pytest.raises(weft.errors.ConfigError, match="unknown padding 'CIRCULAR' of a pooling") as caught:
        weft.MaxPool((2,), padding="CIRCULAR")(jnp.ones((4, 1)))
    assert "CIRCULAR" not in caught.value.fix
