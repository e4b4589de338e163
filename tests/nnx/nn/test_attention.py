"""Attention is flax's: parameters, outputs over masks and options, dropout, sown weights, and decoding."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx as flax_nnx
from flax.nnx.nn import attention as flax_attention
from jax.nn import initializers
from weft import nnx
from weft.nnx.nn import attention

from .twins import assert_equal, assert_same_state, attributes, twins

pytestmark = pytest.mark.slow

NORMAL = initializers.normal(0.3)


def draw(seed, *shape, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def made(*args, **options):
    return twins(lambda library: library.MultiHeadAttention(*args, **options, rngs=library.Rngs(0, dropout=1)))


OPTIONS = {
    "plain": {},
    "sizes": {"qkv_features": 8, "out_features": 5, "bias_init": NORMAL, "out_bias_init": NORMAL},
    "out init": {"out_kernel_init": NORMAL, "kernel_init": initializers.glorot_uniform()},
    "no bias": {"use_bias": False},
    "grouped": {"num_kv_heads": 1},
    # Heads of two would be ill-conditioned: the fast variance of two close values is all rounding.
    "normalized": {"normalize_qk": True, "qkv_features": 16},
    "half": {"dtype": jnp.bfloat16},
    "half parameters": {"param_dtype": jnp.bfloat16},
    "product class": {"qkv_dot_general_cls": lambda: jax.lax.dot_general, "out_dot_general": jax.lax.dot_general},
    "dropped": {"dropout_rate": 0.5, "deterministic": False},
    "dropped each": {"dropout_rate": 0.5, "deterministic": False, "broadcast_dropout": False},
    "grouped dropped": {"dropout_rate": 0.5, "deterministic": False, "num_kv_heads": 1},
    "dropped, keeps none": {"dropout_rate": 0.5, "deterministic": True, "keep_rngs": False},
    "metadata": {
        "kernel_metadata": {"note": "k"},
        "bias_metadata": {"note": "b"},
        "out_kernel_metadata": {"note": "o"},
        "query_ln_scale_metadata": {"note": "q"},
        "key_ln_scale_metadata": {"note": "n"},
        "normalize_qk": True,
        "qkv_features": 16,
    },
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_layer_is_made_and_called_like_flaxs(name):
    theirs, ours = made(2, 4, **OPTIONS[name], decode=False)
    assert_same_state(theirs, ours)
    expected, actual = attributes(flax_nnx, theirs), attributes(nnx, ours)
    assert list(expected) == list(actual)
    assert {k: v for k, v in expected.items() if v is not None} == {k: v for k, v in actual.items() if v is not None}
    tolerance = 2e-2 if "half" in name else 1e-5
    for batch in ((), (2,), (2, 3)):
        x = draw(1, *batch, 5, 4)
        assert_equal(theirs(x), ours(x), tolerance, f"{batch}")
    assert_equal(theirs(x, draw(2, 2, 3, 6, 4)), ours(x, draw(2, 2, 3, 6, 4)), tolerance)
    assert_same_state(theirs, ours)


MASKS = {
    "causal": {"is_causal": True},
    "padding": {"mask": jnp.array([1, 1, 0, 1, 0])[None, None, None, :] * jnp.ones((2, 1, 5, 5))},
    "boolean": {"mask": jnp.tril(jnp.ones((2, 2, 5, 5), bool))},
    "both": {"is_causal": True, "mask": jnp.ones((2, 1, 5, 5)).at[:, :, :, 1].set(0)},
}


@pytest.mark.parametrize("dropout_rate", [0.0, 0.5])
@pytest.mark.parametrize("name", MASKS)
def test_masks_are_flaxs(name, dropout_rate):
    theirs, ours = made(2, 4, dropout_rate=dropout_rate, deterministic=False, decode=False)
    x = draw(1, 2, 5, 4)
    assert_equal(theirs(x, **MASKS[name]), ours(x, **MASKS[name]), 1e-5)
    assert_same_state(theirs, ours)


def test_keys_and_values_may_have_features_of_their_own():
    theirs, ours = made(2, 4, in_kv_features=3, decode=False)
    args = draw(1, 2, 5, 4), draw(2, 2, 6, 3), draw(3, 2, 6, 3)
    assert_equal(theirs(*args), ours(*args), 1e-5)


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2, "normalize_qk": True}, {"dropout_rate": 0.5}])
def test_decoding_step_by_step_is_flaxs_and_that_of_a_causal_call(options):
    theirs, ours = made(4, 8, **options, deterministic=True, decode=True)
    x = draw(1, 2, 3, 8)
    for layer in (theirs, ours):
        layer.init_cache(x.shape)
    assert_same_state(theirs, ours)
    steps = []
    for step in range(3):
        y = theirs(x[:, step : step + 1])
        steps.append(ours(x[:, step : step + 1]))
        assert_equal(y, steps[-1], 1e-5)
        assert_same_state(theirs, ours, 1e-6)
    assert_equal(jnp.concatenate(steps, 1), ours(x, decode=False, is_causal=True), 1e-5)


def test_decoding_under_jit_updates_the_cache():
    def decode(library, layer):
        step = library.jit(lambda layer, x: layer(x))
        return [step(layer, draw(seed, 2, 1, 4)) for seed in range(3)]

    theirs, ours = made(2, 4, decode=True)
    for layer in (theirs, ours):
        layer.init_cache((2, 3, 4))
    assert_equal(decode(flax_nnx, theirs), decode(nnx, ours), 1e-5)
    assert_same_state(theirs, ours, 1e-6)
    assert int(ours.cache_index[...]) == 3


def test_a_step_that_fails_leaves_the_cache_as_it_was():
    def fails(*args, **options):
        raise RuntimeError("no")

    layer = nnx.MultiHeadAttention(2, 4, attention_fn=fails, decode=True, rngs=nnx.Rngs(0))
    layer.init_cache((2, 3, 4))
    with pytest.raises(RuntimeError, match="no"):
        layer(draw(0, 2, 1, 4))
    assert int(layer.cache_index[...]) == 0
    assert not layer.cached_key[...].any()


def test_a_view_for_decoding_can_make_its_cache():
    layer = nnx.MultiHeadAttention(2, 4, decode=False, rngs=nnx.Rngs(0))
    decoder = nnx.view(layer, decode=True, batch_size=2, max_length=3)
    assert decoder.cached_key.shape == (2, 3, 2, 2)
    assert decoder(draw(0, 2, 1, 4)).shape == (2, 1, 4)
    assert layer.cached_key is None


def test_weights_are_sown():
    theirs, ours = made(2, 4, decode=False)
    x = draw(1, 2, 5, 4)

    def run(library, layer):
        y, intermediates = library.capture(lambda layer, x: layer(x, sow_weights=True), library.Intermediate)(layer, x)
        return y, library.to_pure_dict(intermediates)

    assert_equal(run(flax_nnx, theirs), run(nnx, ours), 1e-5)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dropout_rate", [0.0, 0.4])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_the_functions_are_flaxs(kv_heads, dropout_rate, grad):
    q, k, v = draw(0, 2, 5, 4, 3), draw(1, 2, 6, kv_heads, 3), draw(2, 2, 6, kv_heads, 3)
    bias = draw(3, 2, 4, 5, 6)
    options = {"dropout_rate": dropout_rate, "dropout_rng": jax.random.key(0)}

    def results(library):
        def call(q):
            y = library.dot_product_attention(q, k, v, bias, **options)
            return y, library.dot_product_attention_weights(q, k, bias, **options)

        return jax.grad(lambda q: sum((y**2).sum() for y in call(q)))(q) if grad else call(q)

    assert_equal(results(flax_attention), results(attention), 1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bool_])
def test_mask_makers_are_flaxs(dtype):
    def masks(library):
        tokens = jnp.array([[1, 1, 0], [1, 0, 0]])
        padding = library.make_attention_mask(tokens, tokens, dtype=dtype)
        causal = library.make_causal_mask(tokens, dtype=dtype)
        more = (
            library.make_causal_mask(tokens, extra_batch_dims=2),
            library.make_attention_mask(tokens, tokens, jnp.greater, 1),
        )
        return padding, causal, more, library.combine_masks(padding, None, causal, dtype=dtype)

    assert_equal(masks(flax_nnx), masks(nnx))
    assert nnx.combine_masks(None, None) is None


def call(layer_options, *shapes, **options):
    def run(library):
        layer = library.MultiHeadAttention(2, 4, **{"decode": False, **layer_options}, rngs=library.Rngs(0))
        return layer(*(None if shape is None else draw(0, *shape) for shape in shapes), **options)

    return run


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (call({"num_kv_heads": 3}, (2, 5, 4)), "2, must be divisible by num_kv_heads, 3"),
        (call({"qkv_features": 5}, (2, 5, 4)), "qkv_features, 5, must be divisible by num_heads, 2"),
        (call({}, (2, 5, 3)), "takes 4 features on the last axis, not 3"),
        (call({}, (2, 5, 4), None, (2, 5, 4)), "inputs_v was passed without inputs_k"),
        (call({"decode": None}, (2, 5, 4)), "No `decode` argument was provided to MultiHeadAttention"),
        (call({}, (2, 1, 4), decode=True), "decodes without a cache"),
        (call({"dropout_rate": 0.5}, (2, 5, 4)), "No `deterministic` argument was provided to MultiHeadAttention"),
        (
            call({"dropout_rate": 0.5, "keep_rngs": False, "deterministic": False}, (2, 5, 4)),
            "no `rngs` argument was provided",
        ),
        (
            lambda n: n.dot_product_attention(draw(0, 2, 5, 2, 3), draw(0, 5, 2, 3), draw(0, 5, 2, 3)),
            "query, key, value must have same rank",
        ),
        (
            lambda n: n.dot_product_attention(draw(0, 2, 5, 2, 3), draw(0, 3, 5, 2, 3), draw(0, 3, 5, 2, 3)),
            "batch dims must match",
        ),
        (
            lambda n: n.dot_product_attention(draw(0, 2, 5, 2, 3), draw(0, 2, 5, 2, 3), draw(0, 2, 4, 2, 3)),
            "key and value lengths must match",
        ),
        (lambda n: n.combine_masks(jnp.ones(2), jnp.ones((2, 2))), "masks must have the same rank"),
    ],
)
def test_bad_input_is_refused_as_flaxs_class_of_error(run, message):
    with pytest.raises(ValueError):  # noqa: PT011 - flax's words are flax's
        run(flax_nnx)
    with pytest.raises(ValueError, match=message):
        run(nnx)


def test_a_step_of_the_wrong_shape_is_refused():
    layer = nnx.MultiHeadAttention(2, 4, decode=True, rngs=nnx.Rngs(0))
    layer.init_cache((2, 3, 4))
    with pytest.raises(ValueError, match=r"takes keys of shape \(2, 1, 2, 2\), not \(2, 2, 2, 2\)"):
        layer(draw(0, 2, 2, 4))
