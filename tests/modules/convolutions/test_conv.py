"""Conv: equal to flax's for every option, with any number of batch axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from flax import nnx
from weft.errors import AxisError, ConfigError
from weft.modules import Conv, Conv1d, Conv2d, Conv3d, ops


def inputs(*shape):
    return jax.random.normal(jax.random.key(0), shape)


KEY = jax.random.key(0)
OPTIONS = [
    {},
    {"strides": 2},
    {"padding": "VALID"},
    {"padding": "CIRCULAR"},
    {"padding": "REFLECT"},
    {"padding": "CIRCULAR", "kernel_dilation": 2},
    {"padding": 1},
    {"input_dilation": 2, "padding": 1},
    {"kernel_dilation": 2},
    {"feature_group_count": 2},
    {"use_bias": False},
    {"dtype": jnp.bfloat16},
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_conv_equals_flax(options, rank, draws):
    window = (3, 2, 3)[:rank]
    ours = Conv(2, 4, window, key=KEY, **options)
    theirs = nnx.Conv(2, 4, window, rngs=draws(KEY), **options)
    np.testing.assert_array_equal(ours.kernel, theirs.kernel[...])
    x = inputs(2, *(5, 4, 6)[:rank], 2)
    actual, expected = ours(x), theirs(x)
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(np.asarray(actual, np.float32), np.asarray(expected, np.float32), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel_dilation", [1, 2])
def test_causal_padding_equals_flax_and_looks_only_back(kernel_dilation, draws):
    options = {"padding": "CAUSAL", "kernel_dilation": kernel_dilation}
    ours, theirs = Conv1d(2, 4, 3, key=KEY, **options), nnx.Conv(2, 4, (3,), rngs=draws(KEY), **options)
    x = inputs(2, 5, 2)
    np.testing.assert_allclose(ours(x), theirs(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours(x.at[:, 3:].set(0.0))[:, :3], ours(x)[:, :3])


def test_pairs_of_padding_equal_flax(draws):
    options = {"padding": [(0, 2), (1, 0)], "strides": (2, 1)}
    ours, theirs = Conv(2, 4, (3, 3), key=KEY, **options), nnx.Conv(2, 4, (3, 3), rngs=draws(KEY), **options)
    np.testing.assert_allclose(ours(inputs(1, 5, 6, 2)), theirs(inputs(1, 5, 6, 2)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [(), (1,), (2, 3), (0,), (2, 0)])
def test_batch_axes_are_kept(batch):
    layer = Conv(2, 4, (3, 3), key=KEY)
    x = inputs(*batch, 5, 6, 2)
    flat = layer(x.reshape(-1, 5, 6, 2)) if 0 not in batch else jnp.zeros((0, 5, 6, 4))
    np.testing.assert_allclose(layer(x), flat.reshape(*batch, 5, 6, 4), rtol=1e-5, atol=1e-6)


def test_vmap_over_examples_is_the_batched_call():
    layer, x = Conv(2, 4, (3, 3), key=KEY), inputs(3, 5, 6, 2)
    np.testing.assert_allclose(jax.vmap(layer)(x), layer(x), rtol=1e-5, atol=1e-6)


def test_padding_as_lists_is_kept_hashable():
    layer = Conv(2, 4, (3, 3), padding=[[1, 1], [0, 2]], key=KEY)
    assert layer.padding == ((1, 1), (0, 2))
    hash(jax.tree.structure(layer))


BAD = [
    ({"padding": "SOME"}, "unknown padding 'SOME'"),
    ({"padding": "CAUSAL"}, "causal padding is for one spatial axis, not 2"),
    ({"padding": [1]}, "padding has 1 entries for 2 spatial axes"),
    ({"strides": (1, 2, 3)}, "strides has 3 numbers for 2 spatial axes"),
    ({"input_dilation": 2}, "padding 'SAME' cannot be combined with input_dilation"),
    ({"feature_group_count": 3}, "groups=3 must divide in_features=2 and out_features=4"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_options_are_refused_at_construction(options, message):
    with pytest.raises(ConfigError, match=message):
        Conv(2, 4, (3, 3), key=KEY, **options)


@pytest.mark.parametrize("builtin", [ValueError, RuntimeError])
def test_an_unknown_padding_is_the_error_of_bad_options_and_the_one_that_jax_raises(builtin):
    with pytest.raises(builtin, match="unknown padding 'SOME'"):
        ops.conv(inputs(5, 2), jnp.ones((3, 2, 4)), padding="SOME")


def test_wrong_inputs_are_named(unchecked):
    layer = Conv(2, 4, (3, 3), key=KEY)
    with pytest.raises(AxisError, match="Conv takes 2 features on the last axis, not 3"):
        layer(inputs(5, 5, 3))
    with pytest.raises(AxisError, match="a window of 2 axes needs 2 spatial axes and one of features, not 2 axes"):
        layer(inputs(5, 2))


def test_the_op_takes_lists():
    assert ops.conv(inputs(5, 2), jnp.ones((3, 2, 4)), strides=[2], padding=[[1, 1]]).shape == (3, 4)


@pytest.mark.parametrize("size", [3, np.int64(3)])
def test_a_kernel_of_one_number_is_refused_where_nothing_says_how_many_axes_it_has(size):
    with pytest.raises(ConfigError, match="kernel_size=3 does not tell the number of spatial axes of Conv") as caught:
        Conv(3, 8, size, key=jax.random.key(0))
    assert "Conv2d(..., 3) or Conv(..., (3, 3)) for images; Conv1d(..., 3)" in str(caught.value)


@pytest.mark.parametrize(("layer", "rank"), [(Conv1d, 1), (Conv2d, 2), (Conv3d, 3)])
def test_a_conv_named_after_its_axes_is_the_conv_of_that_window(layer, rank):
    key, x = jax.random.key(0), inputs(2, *(5, 6, 4)[:rank], 3)
    from_int, from_tuple = layer(3, 4, 3, key=key), layer(3, 4, (3,) * rank, key=key)
    general = Conv(3, 4, (3,) * rank, key=key)
    np.testing.assert_array_equal(from_int(x), general(x))
    np.testing.assert_array_equal(from_tuple(x), general(x))


@pytest.mark.parametrize(
    ("layer", "size", "message"),
    [
        (Conv2d, (3,), "Conv2d: kernel_size has 1 numbers for 2 spatial axes"),
        (Conv1d, (3, 3), "Conv1d: kernel_size has 2 numbers for 1 spatial axes"),
        (Conv2d, 0, "Conv2d: kernel_size must be positive integers, not 0"),
        (Conv, (3, -1), "Conv: kernel_size must be positive, not -1"),
    ],
)
def test_a_window_that_does_not_fit_is_refused(layer, size, message):
    with pytest.raises(ConfigError, match=message):
        layer(3, 4, size, key=jax.random.key(0))


def test_an_image_without_channels_is_refused_by_a_conv_over_images(unchecked):
    with pytest.raises(AxisError, match="a window of 2 axes needs 2 spatial axes and one of features, not 2 axes"):
        Conv2d(28, 4, 3, key=jax.random.key(0))(inputs(28, 28))


@pytest.mark.parametrize(("make", "theirs"), [(weft.Conv2d, nnx.Conv), (weft.ConvTranspose2d, nnx.ConvTranspose)])
def test_a_mask_hides_a_part_of_the_kernel_as_flaxs_does(make, theirs):
    mask = jnp.tril(jnp.ones((3, 3)))[:, :, None, None] * jnp.ones((3, 3, 2, 4))
    layer = make(2, 4, 3, mask=mask, key=jax.random.key(0))
    twin = theirs(2, 4, (3, 3), mask=mask, rngs=nnx.Rngs(0))
    twin.kernel[...], twin.bias[...] = layer.kernel, layer.bias
    x = jax.random.normal(jax.random.key(1), (1, 5, 5, 2))
    np.testing.assert_allclose(layer(x), twin(x), rtol=1e-6, atol=1e-6)
    gradient = weft.grad(lambda layer, x: (layer(x) ** 2).sum())(layer, x)
    assert gradient.mask is None  # it is no parameter
    np.testing.assert_array_equal(gradient.kernel[mask == 0], 0)
    with pytest.raises(weft.errors.ConfigError, match=r"the mask must have the shape of the kernel"):
        make(2, 4, 3, mask=mask[0], key=jax.random.key(0))
