"""Norms: equal to flax's, in training and inference, in low precision, over named axes and under masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from weft.core import BatchStat
from weft.errors import AxisError, ConfigError
from weft.modules import BatchNorm, LayerNorm, RMSNorm, ops
from weft.tree import select

KEY = jax.random.key(0)
OPTIONS = [
    {},
    {"use_scale": False},
    {"use_bias": False},
    {"epsilon": 0.1},
    {"dtype": jnp.bfloat16},
    {"param_dtype": jnp.bfloat16},
    {"use_fast_variance": False},
    {"scale_init": jax.nn.initializers.normal(), "bias_init": jax.nn.initializers.normal()},
]


def inputs(*shape, dtype=jnp.float32):
    return (2 + 3 * jax.random.normal(jax.random.key(0), shape)).astype(dtype)


def assert_same(ours, theirs, tolerance=1e-5):
    assert ours.dtype == theirs.dtype
    ours, theirs = np.asarray(ours, np.float32), np.asarray(theirs, np.float32)
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("x_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_batch_norm_equals_flax_over_steps_and_in_inference(options, x_dtype, draws):
    ours, theirs = BatchNorm(3, key=KEY, **options), nnx.BatchNorm(3, rngs=draws(KEY), **options)
    for shape in ((4, 3), (2, 5, 3)):
        x = inputs(*shape, dtype=x_dtype)
        y, ours = ours(x)
        # In flax the float32 statistics promote the result, and a bfloat16 `dtype` rounds them. In a record neither.
        dtype = ops.compute_dtype(x, ours.scale, ours.bias, dtype=ours.dtype)
        assert_same(y, theirs(x).astype(dtype))
        assert_same(ours.mean, theirs.mean[...])
        assert_same(ours.var, theirs.var[...])
    y, same = ours(x, inference=True)
    assert_same(y, theirs(x, use_running_average=True).astype(dtype), 1e-5 if dtype == jnp.float32 else 1e-2)
    assert same is ours


def test_batch_norm_equals_flax_under_a_mask():
    x, mask = inputs(4, 3), jnp.array([[True], [False], [True], [True]])
    y, ours = BatchNorm(3)(x, mask=mask)
    theirs = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    assert_same(y, theirs(x, mask=mask))
    assert_same(ours.var, theirs.var[...])


@pytest.mark.parametrize("use_fast_variance", [True, False])
def test_a_named_axis_gives_the_batch_statistics_to_each_example(use_fast_variance):
    x, options = inputs(6, 5, 3), {"use_fast_variance": use_fast_variance}
    batched, successor = BatchNorm(3, **options)(x)
    layer = BatchNorm(3, axis_name="batch", **options)
    each, each_successor = jax.vmap(layer, axis_name="batch", out_axes=(0, None))(x)
    assert_same(each, batched)
    assert_same(each_successor.var, successor.var)


def test_an_example_of_features_alone_is_one_member_of_the_named_batch():
    x = inputs(6, 3)
    layer = BatchNorm(3, axis_name="batch")
    each, _ = jax.vmap(layer, axis_name="batch", out_axes=(0, None))(x)
    assert_same(each, BatchNorm(3)(x)[0])


def test_groups_of_a_named_axis_average_apart_and_may_be_lists():
    # Groups are for collectives between devices; the field holds them hashable.
    assert BatchNorm(3, axis_name="i", axis_index_groups=[[0, 1], [2, 3]]).axis_index_groups == ((0, 1), (2, 3))


def test_running_statistics_are_batch_stats_and_keep_their_dtype():
    layer = BatchNorm(3, param_dtype=jnp.bfloat16)
    assert [leaf.dtype for leaf in jax.tree.leaves(select(layer, BatchStat))] == [jnp.float32] * 2
    _, successor = layer(inputs(4, 3, dtype=jnp.bfloat16))
    assert jax.tree.structure(successor) == jax.tree.structure(layer)
    assert successor.mean.dtype == jnp.float32


def test_batch_norm_threads_through_scan():
    xs = inputs(3, 4, 2)

    def step(layer, x):
        y, layer = layer(x)
        return layer, y

    last, ys = jax.lax.scan(step, BatchNorm(2), xs)
    by_hand = BatchNorm(2)
    for i, x in enumerate(xs):
        y, by_hand = by_hand(x)
        assert_same(ys[i], y)
    assert_same(last.mean, by_hand.mean)


@pytest.mark.parametrize("x_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_layer_norm_equals_flax(options, x_dtype, draws):
    ours, theirs = LayerNorm(5, key=KEY, **options), nnx.LayerNorm(5, rngs=draws(KEY), **options)
    assert_same(ours(inputs(2, 3, 5, dtype=x_dtype)), theirs(inputs(2, 3, 5, dtype=x_dtype)))


@pytest.mark.parametrize("options", [{}, {"use_scale": False}, {"epsilon": 0.1}, {"dtype": jnp.bfloat16}], ids=str)
def test_rms_norm_equals_flax(options):
    ours, theirs = RMSNorm(5, **options), nnx.RMSNorm(5, rngs=nnx.Rngs(0), **options)
    assert_same(ours(inputs(2, 3, 5)), theirs(inputs(2, 3, 5)))


@pytest.mark.slow
def test_the_op_normalises_other_axes_like_flax():
    x = inputs(2, 3, 4, 5)
    options = {"reduction_axes": (1, 2), "feature_axes": (1, 3)}
    scale = jax.random.normal(jax.random.key(1), (3, 5))
    theirs = nnx.LayerNorm(5, use_scale=False, use_bias=False, rngs=nnx.Rngs(0), **options)(x)
    assert_same(ops.norm(x, axes=[1, 2], feature_axes=[1, 3]), theirs)
    scaled = ops.norm(x, scale, axes=[1, 2], feature_axes=[1, 3])
    assert_same(scaled, theirs * scale[None, :, None, :])


def test_moments_of_complex_values_have_a_real_variance():
    x = jnp.array([1 + 1j, -1 - 1j])
    mean, variance = ops.moments(x, 0)
    assert mean.dtype == jnp.complex64
    assert variance.dtype == jnp.float32
    assert variance == 2


@pytest.mark.parametrize("layer", [LayerNorm(3), RMSNorm(3), BatchNorm(3)], ids=lambda layer: type(layer).__name__)
def test_norms_take_symbolic_sizes_and_refuse_rank_promotion(layer):
    (batch,) = jax.export.symbolic_shape("b")
    with jax.numpy_rank_promotion("raise"):
        out = jax.eval_shape(layer, jax.ShapeDtypeStruct((batch, 3), jnp.float32))
    assert str(jax.tree.leaves(out)[0].shape[0]) == "b"


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm, BatchNorm])
def test_wrong_features_are_named(kind, unchecked):
    with pytest.raises(AxisError, match=f"{kind.__name__} takes 3 features on the last axis, not 4"):
        kind(3)(jnp.ones((2, 4)))
    with pytest.raises(ConfigError, match=f"{kind.__name__}: features must be positive, not 0"):
        kind(0)


def test_gradients_equal_flax():
    x, ours, theirs = inputs(4, 3), BatchNorm(3), nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    mine = jax.grad(lambda layer: (layer(x)[0] ** 3).sum())(ours)
    expected = nnx.grad(lambda layer: (layer(x) ** 3).sum())(theirs)
    np.testing.assert_allclose(mine.scale, expected["scale"][...], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(mine.bias, expected["bias"][...], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("axis_name", ["batch", ("devices", "batch")])
def test_a_batch_norm_outside_of_its_axis_says_which_and_what_to_do(axis_name):
    layer = BatchNorm(3, axis_name=axis_name)
    with pytest.raises(AxisError) as caught:
        jax.vmap(layer, axis_name="devices")(inputs(2, 4, 3))
    assert caught.value.what.startswith(
        f"BatchNorm averages over axis_name={axis_name!r}, but this call has an unbound"
    )
    assert "call it inside of vmap(..., axis_name='batch'), or in inference mode" in caught.value.fix
    assert isinstance(caught.value, NameError)  # as JAX's own
    y, after = layer(inputs(4, 3), inference=True)
    assert after is layer
    assert y.shape == (4, 3)


def test_a_mask_that_does_not_broadcast_is_refused():
    said = r"does not broadcast to its input\n  at: in BatchNorm\n  at: mask: \(3, 8\), x: \(2, 5, 8\)"
    with pytest.raises(AxisError, match=said):
        BatchNorm(8)(jnp.ones((2, 5, 8)), mask=jnp.ones((3, 8), bool))


def test_one_value_per_feature_is_refused_while_training_and_both_ways_out_hold():
    x = inputs(6, 3)
    with pytest.raises(
        AxisError, match=r"(?s)one value for each feature.*at: x: float32\[3\].*axis_name=.*whole batch"
    ):
        jax.vmap(BatchNorm(3), out_axes=(0, None))(x)
    for example in (x[0], x[:1], x[:1, None]):
        with pytest.raises(AxisError, match="every result would be zero"):
            BatchNorm(3)(example)
    named, _ = jax.vmap(BatchNorm(3, axis_name="batch"), axis_name="batch", out_axes=(0, None))(x)
    assert_same(named, BatchNorm(3)(x)[0])
    assert bool((BatchNorm(3)(x)[0] != 0).all())
    assert_same(BatchNorm(3)(x[0], inference=True)[0], BatchNorm(3)(x, inference=True)[0][0])


def test_one_example_is_enough_where_it_has_space():
    assert bool((BatchNorm(3)(inputs(1, 4, 3))[0] != 0).all())


def test_a_named_axis_of_one_is_no_batch():
    with pytest.raises(AxisError, match="one value for each feature"):
        jax.vmap(BatchNorm(3, axis_name="batch"), axis_name="batch", out_axes=(0, None))(inputs(1, 3))
