"""Layers made with the same seeds are equal to flax's: state, attributes, outputs, and state after calls."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx as flax_nnx
from jax import lax
from jax.nn import initializers
from weft import nnx
from weft.nnx.objects.attributes import is_data
from weft.nnx.objects.stability import is_stable

from ..agreement import IS_FOLLOWED
from .twins import assert_equal, assert_same_state, attributes, twins

pytestmark = pytest.mark.wide


def ramp(*shape, dtype=jnp.float32):
    return (jnp.arange(np.prod(shape, dtype=int)).reshape(shape) % 7 - 2.5).astype(dtype) * 0.3


def mixed(args, dtype=None):
    """A promotion that leaves the bias as it is."""
    return (*(jnp.asarray(value, jnp.bfloat16) for value in args[:2]), *args[2:])


METADATA = {"kernel_metadata": {"note": "k"}, "bias_metadata": {"out_sharding": (None,), "eager_sharding": False}}
NORM_METADATA = {"scale_metadata": {"note": "s"}, "bias_metadata": {"note": "b"}}
NORMAL = initializers.normal(0.5)

# name: (arguments, options, inputs)
LINEAR = {
    "plain": ((3, 4), {}, [(2, 3), (2, 5, 3), (3,)]),
    "no bias": ((3, 4), {"use_bias": False}, [(2, 3)]),
    "bias drawn": ((3, 4), {"bias_init": NORMAL}, [(2, 3)]),
    "half": ((3, 4), {"dtype": jnp.bfloat16, "param_dtype": jnp.float16}, [(2, 3)]),
    "accumulated": ((3, 4), {"dtype": jnp.bfloat16, "preferred_element_type": jnp.float32}, [(2, 3)]),
    "precise": ((3, 4), {"precision": "highest"}, [(2, 3)]),
    "own product": (
        (3, 4),
        {"dot_general": lambda *a, out_sharding=None, **k: 2 * lax.dot_general(*a, **k)},
        [(2, 3)],
    ),
    "own promotion": ((3, 4), {"promote_dtype": mixed, "bias_init": NORMAL}, [(2, 3)]),
    "metadata": ((3, 4), METADATA, [(2, 3)]),
}
LINEAR_GENERAL = {
    "plain": ((3, 4), {}, [(2, 3), (2, 5, 3)]),
    "new axes": ((3, (4, 5)), {"bias_init": NORMAL}, [(2, 3)]),
    "several axes": (((2, 3), (4, 5)), {"axis": (1, -1), "bias_init": NORMAL}, [(6, 2, 3), (6, 2, 7, 3)]),
    "batch axis": ((3, 4), {"batch_axis": {0: 5}, "bias_init": NORMAL}, [(5, 2, 3), (5, 3)]),
    "no bias": (((2, 3), 4), {"axis": (-2, -1), "use_bias": False}, [(6, 2, 3)]),
    "product class": ((3, 4), {"dot_general_cls": lambda: lax.dot_general}, [(2, 3)]),
    "half": ((3, 4), {"dtype": jnp.bfloat16, "preferred_element_type": jnp.float32}, [(2, 3)]),
    "metadata": ((3, 4), METADATA, [(2, 3)]),
}
EINSUM = {
    "plain": (("nta,hab->nthb", (8, 2, 4), (8, 4)), {"bias_init": NORMAL}, [(3, 5, 2)]),
    "ellipsis": (("...i, ij -> ...j", (3, 4), (4,)), {"bias_init": NORMAL}, [(2, 3), (2, 5, 3), (3,)]),
    "bias inside": (("abc,cd->adb", (3, 4), (4,)), {"bias_init": NORMAL}, [(2, 5, 3)]),
    "no bias": (("bi,ij->bj", (3, 4)), {}, [(2, 3)]),
    "own summation": (
        ("bi,ij->bj", (3, 4), (4,)),
        {"einsum_op": lambda *a, out_sharding=None, **k: 2 * jnp.einsum(*a, **k)},
        [(2, 3)],
    ),
    "half": (("bi,ij->bj", (3, 4), (4,)), {"dtype": jnp.bfloat16, "preferred_element_type": jnp.float32}, [(2, 3)]),
    "metadata": (("bi,ij->bj", (3, 4), (4,)), METADATA, [(2, 3)]),
}
CONV = {
    "plain": ((3, 4, (3, 3)), {}, [(2, 6, 5, 3), (6, 5, 3), (2, 2, 6, 5, 3)]),
    "one axis": ((3, 4, 3), {"bias_init": NORMAL}, [(2, 6, 3)]),
    "three axes": ((2, 3, (2, 2, 2)), {"strides": (1, 2, 1)}, [(1, 4, 4, 4, 2)]),
    "strides": ((3, 4, (3, 3)), {"strides": 2, "padding": "VALID"}, [(2, 7, 6, 3)]),
    "no strides": ((3, 4, (3,), None), {"input_dilation": None, "kernel_dilation": None}, [(2, 6, 3)]),
    "numbers": ((3, 4, (3, 3)), {"padding": 2}, [(2, 6, 5, 3)]),
    "pairs": ((3, 4, (3, 2)), {"padding": [(0, 1), 2]}, [(2, 6, 5, 3)]),
    "circular": ((3, 4, (3, 4)), {"padding": "CIRCULAR", "kernel_dilation": (1, 2)}, [(2, 6, 8, 3)]),
    "reflect": ((3, 4, (3, 3)), {"padding": "REFLECT"}, [(2, 6, 5, 3)]),
    "causal": ((3, 4, (3,)), {"padding": "CAUSAL", "kernel_dilation": 2}, [(2, 6, 3)]),
    "lower case": ((3, 4, (3,)), {"padding": "same"}, [(2, 6, 3)]),
    "input dilation": ((3, 4, (3,)), {"padding": 1, "input_dilation": 2}, [(2, 6, 3)]),
    "groups": ((4, 6, (3,)), {"feature_group_count": 2}, [(2, 6, 4)]),
    "no bias": ((3, 4, (3,)), {"use_bias": False}, [(2, 6, 3)]),
    "masked": ((3, 4, (3,)), {"mask": (jnp.arange(36) % 2).reshape(3, 3, 4)}, [(2, 6, 3)]),
    "half": ((3, 4, (3,)), {"dtype": jnp.bfloat16, "preferred_element_type": jnp.float32}, [(2, 6, 3)]),
    "own convolution": (
        (3, 4, (3,)),
        {"conv_general_dilated": lambda *a, out_sharding=None, **k: 2 * lax.conv_general_dilated(*a, **k)},
        [(2, 6, 3)],
    ),
    "metadata": ((3, 4, (3,)), METADATA, [(2, 6, 3)]),
}
CONV_TRANSPOSE = {
    "plain": ((3, 4, (3, 3)), {}, [(2, 6, 5, 3), (6, 5, 3), (2, 2, 6, 5, 3)]),
    "strides": ((3, 4, 3, 2), {"padding": "VALID", "bias_init": NORMAL}, [(2, 6, 3)]),
    "pairs": ((3, 4, (3, 3), (2, 1)), {"padding": [1, (0, 2)]}, [(2, 6, 5, 3)]),
    "circular": ((3, 4, (3, 4), (2, 3)), {"padding": "CIRCULAR"}, [(2, 6, 5, 3)]),
    "circular transposed": (
        (3, 4, (4,), 3),
        {"padding": "CIRCULAR", "transpose_kernel": True, "kernel_dilation": 2},
        [(2, 6, 3)],
    ),
    "masked": ((3, 4, (3,)), {"mask": (jnp.arange(36) % 2).reshape(3, 3, 4), "use_bias": False}, [(2, 6, 3)]),
    "half": ((3, 4, (3,)), {"dtype": jnp.bfloat16, "preferred_element_type": jnp.float32}, [(2, 6, 3)]),
    "metadata": ((3, 4, (3,)), METADATA, [(2, 6, 3)]),
}
LAYER_NORM = {
    "plain": ((4,), {}, [(3, 4), (2, 3, 4), (4,)]),
    "no parameters": ((4,), {"use_bias": False, "use_scale": False}, [(3, 4)]),
    "drawn": ((4,), {"bias_init": NORMAL, "scale_init": NORMAL, "epsilon": 1e-3}, [(3, 4)]),
    "slow": ((4,), {"use_fast_variance": False}, [(3, 4)]),
    "other axes": ((4,), {"reduction_axes": (1, 2), "feature_axes": 1, "scale_init": NORMAL}, [(3, 4, 5)]),
    "several features": (
        (12,),
        {"reduction_axes": (-2, -1), "feature_axes": (-2, -1), "scale_init": NORMAL},
        [(2, 3, 4)],
    ),
    "half": ((4,), {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16}, [(3, 4)]),
    "metadata": ((4,), NORM_METADATA, [(3, 4)]),
}
RMS_NORM = {
    "plain": ((4,), {}, [(3, 4), (4,)]),
    "no scale": ((4,), {"use_scale": False, "epsilon": 1e-2}, [(3, 4)]),
    "other axes": ((4,), {"reduction_axes": (0, 2), "feature_axes": 1, "scale_init": NORMAL}, [(3, 4, 5)]),
    "half": ((4,), {"dtype": jnp.float16}, [(3, 4)]),
    "metadata": ((4,), {"scale_metadata": {"note": "s"}}, [(3, 4)]),
}
GROUP_NORM = {
    "groups": ((6, 3), {}, [(2, 6), (2, 5, 6), (2, 3, 4, 6)]),
    "sizes": ((6, None, 3), {"scale_init": NORMAL, "bias_init": NORMAL}, [(2, 5, 6)]),
    "axes": ((6, 2), {"reduction_axes": (-1,)}, [(2, 6)]),
    "slow": ((6, 2), {"use_fast_variance": False, "use_bias": False}, [(2, 5, 6)]),
    "half": ((6, 2), {"dtype": jnp.bfloat16}, [(2, 5, 6)]),
    "metadata": ((6, 2), NORM_METADATA, [(2, 6)]),
}
INSTANCE_NORM = {
    "plain": ((4,), {}, [(2, 5, 4), (2, 3, 5, 4)]),
    "drawn": ((4,), {"scale_init": NORMAL, "bias_init": NORMAL}, [(2, 5, 4)]),
    "feature axis": ((5,), {"feature_axes": 1, "scale_init": NORMAL}, [(2, 5, 4)]),
    "no parameters": ((4,), {"use_scale": False, "use_bias": False}, [(2, 5, 4)]),
    "metadata": ((4,), NORM_METADATA, [(2, 5, 4)]),
}
BATCH_NORM = {
    "plain": ((4,), {}, [(3, 4), (2, 3, 4)]),
    "running": ((4,), {"use_running_average": True}, [(3, 4)]),
    "drawn": ((4,), {"scale_init": NORMAL, "bias_init": NORMAL, "momentum": 0.5, "epsilon": 1e-2}, [(3, 4)]),
    "no parameters": ((4,), {"use_scale": False, "use_bias": False}, [(3, 4)]),
    "axis": ((4,), {"axis": 1}, [(3, 4, 2)]),
    "slow": ((4,), {"use_fast_variance": False}, [(3, 4)]),
    "half": ((4,), {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16}, [(3, 4)]),
    "half running": ((4,), {"dtype": jnp.bfloat16, "use_running_average": True}, [(3, 4)]),
    "metadata": ((4,), NORM_METADATA, [(3, 4)]),
}
TABLE = {
    "Linear": LINEAR,
    "LinearGeneral": LINEAR_GENERAL,
    "Einsum": EINSUM,
    "Conv": CONV,
    "ConvTranspose": CONV_TRANSPOSE,
    "LayerNorm": LAYER_NORM,
    "RMSNorm": RMS_NORM,
    "GroupNorm": GROUP_NORM,
    "InstanceNorm": INSTANCE_NORM,
    "BatchNorm": BATCH_NORM,
}
CASES = [
    pytest.param(layer, *row, id=f"{layer}: {name}") for layer, rows in TABLE.items() for name, row in rows.items()
]


def made(layer, args, options):
    return twins(lambda library: getattr(library, layer)(*args, **options, rngs=library.Rngs(3)))


def tolerance_of(y):
    """Rounding to the result's dtype may fall either way once."""
    return {jnp.dtype(jnp.bfloat16): 1e-2, jnp.dtype(jnp.float16): 1e-3}.get(y.dtype, 1e-6)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("layer", "args", "options", "shapes"), CASES)
def test_a_layer_is_made_and_called_like_flaxs(layer, args, options, shapes):
    theirs, ours = made(layer, args, options)
    assert_same_state(theirs, ours)
    their_attributes, our_attributes = attributes(flax_nnx, theirs), attributes(nnx, ours)
    assert list(their_attributes) == list(our_attributes)
    assert {k: v for k, v in their_attributes.items() if v is not None} == {
        k: v for k, v in our_attributes.items() if v is not None
    }
    for shape in shapes:
        x = ramp(*shape)
        y = theirs(x)
        half = options.get("dtype") is not None or "promote_dtype" in options
        assert_equal(y, ours(x), 1e-2 if half else tolerance_of(y), f"{shape}")
        assert_same_state(theirs, ours, 1e-6)


@pytest.mark.parametrize(("layer", "args", "options", "shapes"), CASES)
def test_what_a_layer_keeps_cannot_change_behind_a_plans_back(layer, args, options, shapes):
    made = getattr(nnx, layer)(*args, **options, rngs=nnx.Rngs(0))
    assert [name for name, value in vars(made).items() if not (is_data(value) or is_stable(value))] == []


@pytest.mark.one_in(4)
@pytest.mark.parametrize("layer", TABLE)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int32])
def test_inputs_of_other_dtypes_promote_as_in_flax(layer, dtype):
    args, options, shapes = TABLE[layer]["plain" if "plain" in TABLE[layer] else "groups"]
    theirs, ours = made(layer, args, options)
    x = (ramp(*shapes[0]) * 10).astype(dtype)
    y = theirs(x)
    assert_equal(y, ours(x), max(1e-5, tolerance_of(y)))


@pytest.mark.parametrize("layer", ["Conv", "BatchNorm", "LayerNorm", "LinearGeneral"])
def test_gradients_are_flaxs(layer):
    args, options, shapes = TABLE[layer]["plain"]
    theirs, ours = made(layer, args, options)
    x = ramp(*shapes[0])

    def loss(layer, x):
        return (layer(x) ** 3).sum()

    assert_equal(
        jax.tree.leaves(flax_nnx.grad(loss, argnums=(0, 1))(theirs, x)),
        jax.tree.leaves(nnx.grad(loss, argnums=(0, 1))(ours, x)),
        1e-4,
    )
    assert_same_state(theirs, ours, 1e-6)


@pytest.mark.parametrize("layer", [*TABLE, "Embed", "Dropout", "MultiHeadAttention", "PReLU", "Optimizer"])
def test_constructors_and_calls_have_flaxs_parameters_and_defaults(layer):
    theirs, ours = getattr(flax_nnx, layer), getattr(nnx, layer)
    for method in ("__init__", "__call__", "update", "init_cache", "set_view", "attend"):
        if not hasattr(theirs, method):
            continue
        expected = inspect.signature(getattr(theirs, method)).parameters
        actual = inspect.signature(getattr(ours, method)).parameters
        # An older flax has fewer.
        assert list(expected) == list(actual) if IS_FOLLOWED else expected.keys() <= actual.keys(), method
        for name, parameter in expected.items():
            assert parameter.kind == actual[name].kind, name
            if isinstance(parameter.default, (bool, int, float, str, tuple, type(None))):
                assert actual[name].default == parameter.default, name


# ------------------------------------------------------------------------------------------------- single layers


@pytest.mark.parametrize("options", [{}, {"dtype": jnp.bfloat16}, {"embedding_metadata": {"note": "e"}}])
@pytest.mark.parametrize("rows", [1, 5])
def test_embed_looks_up_and_attends_like_flaxs(rows, options):
    theirs, ours = made("Embed", (rows, 3), options)
    assert_same_state(theirs, ours)
    ids = jnp.array([[0, 1, 7], [-1, -2, 4]])
    assert_equal(theirs(ids), ours(ids))
    assert_equal(theirs.attend(ramp(2, 3)), ours.attend(ramp(2, 3)), 1e-2 if "dtype" in options else 1e-6)
    with pytest.raises(ValueError, match="Embed got float32"):
        ours(ramp(2))


@pytest.mark.parametrize("options", [{}, {"dtype": jnp.bfloat16}, {"negative_slope_metadata": {"note": "p"}}])
def test_prelu_is_flaxs(options):
    theirs, ours = twins(lambda library: library.PReLU(0.2, **options))
    assert_same_state(theirs, ours)
    assert_equal(theirs(ramp(2, 3)), ours(ramp(2, 3)), 1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_masked_statistics_are_flaxs(dtype):
    x, mask = ramp(3, 4, dtype=dtype), jnp.array([[1, 1, 0, 1]] * 2 + [[0, 1, 1, 1]], bool)
    for layer in ("BatchNorm", "LayerNorm"):
        theirs, ours = made(layer, (4,), {})
        assert_equal(theirs(x, mask=mask), ours(x, mask=mask), 1e-5)
        assert_same_state(theirs, ours, 1e-6)
    theirs, ours = made("RMSNorm", (4,), {})
    assert_equal(theirs(x, mask), ours(x, mask), 1e-5)
    theirs, ours = made("GroupNorm", (4, 2), {})
    assert_equal(theirs(x, mask=mask), ours(x, mask=mask), 1e-5)


def test_batch_norm_averages_over_a_named_axis_as_in_flax():
    def apply(library, layer):
        def call(layer, x):
            return layer(x)

        axes = library.StateAxes({...: None})
        return library.vmap(call, in_axes=(axes, 0), out_axes=0, axis_name="batch")(layer, ramp(2, 3, 4))

    theirs, ours = made("BatchNorm", (4,), {"axis_name": "batch"})
    assert_equal(apply(flax_nnx, theirs), apply(nnx, ours), 1e-5)
    assert_same_state(theirs, ours, 1e-6)


def test_train_and_eval_switch_batch_norm():
    theirs, ours = made("BatchNorm", (4,), {})
    x = ramp(3, 4)
    for layer in (theirs, ours):
        layer(x)
        layer.eval()
    assert_equal(theirs(x), ours(x), 1e-6)
    assert_same_state(theirs, ours, 1e-6)
    assert_equal(theirs(x, use_running_average=False), ours(x, use_running_average=False), 1e-6)
    assert_same_state(theirs, ours, 1e-6)


def test_initializers_that_carry_metadata_are_reshaped_with_it():
    def make(library):
        init = library.with_metadata(initializers.lecun_normal(), out_sharding=("a", "b"), eager_sharding=False)
        return library.LinearGeneral(3, (2, 2), kernel_init=init, rngs=library.Rngs(0))

    assert_same_state(*twins(make))


# ------------------------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize(
    ("rate", "options"),
    [(0.5, {}), (0.3, {"broadcast_dims": (0,)}), (0.0, {}), (1.0, {}), (0.5, {"rng_collection": "r"})],
)
def test_dropout_draws_what_flaxs_draws(rate, options):
    theirs, ours = twins(lambda library: library.Dropout(rate, **options, rngs=library.Rngs(0, dropout=1, r=2)))
    x = ramp(4, 5)
    assert_same_state(theirs, ours)
    for _ in range(2):
        assert_equal(theirs(x), ours(x), 1e-6)
        assert_same_state(theirs, ours)
    assert_equal(theirs(x, deterministic=True), ours(x, deterministic=True))
    theirs.eval(), ours.eval()
    assert_equal(theirs(x), ours(x))
    assert_same_state(theirs, ours)


@pytest.mark.parametrize(
    "source", [lambda nnx: nnx.Rngs(7), lambda nnx: nnx.Rngs(dropout=7).dropout, lambda nnx: jax.random.key(7)]
)
def test_dropout_takes_its_randomness_in_the_call(source):
    theirs, ours = twins(lambda library: library.Dropout(0.5)(ramp(4, 5), rngs=source(library)))
    assert_equal(theirs, ours, 1e-6)


def test_a_stream_given_to_dropout_is_forked():
    theirs, ours = twins(lambda library: library.Dropout(0.5, rngs=library.Rngs(dropout=7).dropout))
    assert_same_state(theirs, ours)


# ------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda n: n.Dropout(0.5)(ramp(2)), ValueError, "no `rngs` argument was provided to Dropout"),
        (
            lambda n: n.Dropout(0.5, deterministic=None)(ramp(2)),
            ValueError,
            "No `deterministic` argument was provided to Dropout",
        ),
        (lambda n: n.Dropout(0.5, rngs=3), TypeError, "Dropout got a int"),
        (lambda n: n.Dropout(0.5)(ramp(2), rngs=3), TypeError, "Rngs, a stream or a key; Dropout got a int"),
        (
            lambda n: n.BatchNorm(2, use_running_average=None, rngs=n.Rngs(0))(ramp(2, 2)),
            ValueError,
            "No `use_running_average` argument was provided to BatchNorm",
        ),
        (lambda n: n.GroupNorm(6, 4, rngs=n.Rngs(0)), ValueError, "GroupNorm has 6 features, groups: 4"),
        (lambda n: n.GroupNorm(6, 3, 2, rngs=n.Rngs(0)), ValueError, "either `num_groups` or `group_size`"),
        (lambda n: n.GroupNorm(6, None, 4, rngs=n.Rngs(0)), ValueError, "6 features, a group size of 4"),
        (lambda n: n.InstanceNorm(2, feature_axes=0, rngs=n.Rngs(0))(ramp(2, 2)), ValueError, "axis is the batch"),
        (lambda n: n.Einsum("bi,ij", (2, 2), rngs=n.Rngs(0)), ValueError, "'bi,ij' has no output"),
        (lambda n: n.Einsum("bi->b", (2, 2), rngs=n.Rngs(0)), ValueError, "'bi->b' has 1 operands"),
        (lambda n: n.LinearGeneral((2, 3), 4, rngs=n.Rngs(0)), ValueError, "got 1 axes, and 2 sizes"),
        (lambda n: n.LinearGeneral(2, 4, batch_axis={1: 2}, rngs=n.Rngs(0)), ValueError, "must be the leading axes"),
        (
            lambda n: n.Conv(3, 4, 3, mask=jnp.ones(2), rngs=n.Rngs(0))(ramp(2, 6, 3)),
            ValueError,
            "mask of a Conv must have the shape of its kernel",
        ),
        (
            lambda n: n.Conv(3, 4, 3, padding=[1, 2], rngs=n.Rngs(0))(ramp(2, 6, 3)),
            ValueError,
            "2 entries for 1 spatial",
        ),
    ],
)
def test_bad_input_is_refused_as_flaxs_class_of_error(make, error, message):
    with pytest.raises(error):
        make(flax_nnx)
    with pytest.raises(error, match=message):
        make(nnx)


def test_a_missing_mode_says_the_ways_to_give_it():
    with pytest.raises(ValueError, match=r"nnx\.view\(model, deterministic=\.\.\.\)"):
        nnx.Dropout(0.5, deterministic=None)(ramp(2))


def test_own_functions_with_state_may_take_part_in_a_layer():
    class Scaled(nnx.Module):
        def __init__(self):
            self.calls = nnx.BatchStat(jnp.array(0))

        def __call__(self, *args, **options):
            self.calls[...] += 1
            return lax.dot_general(*args, **options)

    scaled = Scaled()
    layer = nnx.Linear(3, 4, dot_general=scaled, rngs=nnx.Rngs(0))
    nnx.jit(lambda layer, x: layer(x))(layer, ramp(2, 3))
    layer(ramp(2, 3))
    assert int(scaled.calls[...]) == 2
