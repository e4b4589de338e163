"""MultiHeadAttention: what it computes, against a loop over queries and against flax; masks, options, transforms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from flax import nnx
from weft.core.records.keys import SeedError
from weft.errors import AxisError, ConfigError
from weft.modules import LayerNorm, MultiHeadAttention, RMSNorm, RoPE, ops

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (2, 5, 8))
CONTEXT = jax.random.normal(jax.random.key(2), (2, 7, 6))
OPTIONS = {"bias_init": jax.nn.initializers.normal()}


def attention(heads=4, **options):
    return MultiHeadAttention(8, heads, key=KEY, **OPTIONS, **options)


def by_hand(layer, x, context=None, values=None, allowed=None, bias=0.0):
    """Attention of one example, query by query and head by head, in NumPy."""
    source = x if context is None else context
    values = source if values is None else values
    allowed = np.ones((len(x), len(source)), bool) if allowed is None else allowed
    size, each = layer.head_features, layer.num_heads // layer.num_kv_heads
    bias = np.broadcast_to(bias, (layer.num_heads, *allowed.shape))

    def heads(linear, x, count):
        y = np.asarray(x) @ np.asarray(linear.kernel) + np.asarray(linear.bias)
        return y.reshape(len(x), count, size)

    query = heads(layer.query, x, layer.num_heads)
    key, value = (
        heads(part, given, layer.num_kv_heads) for part, given in ((layer.key, source), (layer.value, values))
    )
    y = np.zeros((len(x), layer.num_heads, size))
    for q in range(len(x)):
        for head in range(layer.num_heads):
            logits = np.array([query[q, head] @ k[head // each] for k in key]) / np.sqrt(size) + bias[head, q]
            weights = np.where(allowed[q], np.exp(logits - logits[allowed[q]].max()), 0)
            y[q, head] = sum(w * v[head // each] for w, v in zip(weights / weights.sum(), value, strict=True))
    return y.reshape(len(x), -1) @ np.asarray(layer.out.kernel) + np.asarray(layer.out.bias)


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1), (1, 1)])
def test_each_query_gets_the_mean_of_the_values_by_its_weights(heads):
    layer = attention(heads[0], num_kv_heads=heads[1])
    y = layer(X)
    for output, x in zip(y, X, strict=True):
        assert_close(output, by_hand(layer, x))


@pytest.mark.slow
def test_a_context_makes_the_keys_and_something_else_may_make_the_values():
    layer = attention(context_features=6)
    assert_close(layer(X, CONTEXT)[0], by_hand(layer, X[0], CONTEXT[0]))
    layer = attention(context_features=6, value_features=8, out_features=3)
    values = jax.random.normal(KEY, (2, 7, 8))
    y = layer(X, CONTEXT, values)
    assert y.shape == (2, 5, 3)
    assert_close(y[1], by_hand(layer, X[1], CONTEXT[1], values[1]))


def distances(q, kv):
    return np.arange(kv)[None] - np.arange(q)[:, None]


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"causal": True}, distances(5, 5) <= 0),
        ({"window": 1}, abs(distances(5, 5)) <= 1),
        ({"window": (2, 1)}, (distances(5, 5) >= -2) & (distances(5, 5) <= 1)),
        ({"window": 2, "causal": True}, (distances(5, 5) >= -2) & (distances(5, 5) <= 0)),
    ],
)
def test_causal_attention_and_windows_see_only_what_they_say(options, allowed):
    layer = attention(**options)
    assert_close(layer(X)[0], by_hand(layer, X[0], allowed=allowed))
    # The path with weights that can be dropped is another one.
    dropping = layer.replace(dropout=weft.Dropout(1e-12))
    assert_close(dropping(X, key=KEY), layer(X))
    mask = jax.random.bernoulli(KEY, 0.5, (5, 5)) | jnp.eye(5, dtype=bool)
    both = by_hand(layer, X[0], allowed=allowed & np.asarray(mask))
    assert_close(layer(X, mask=mask)[0], both)
    assert_close(dropping(X, mask=mask, key=KEY)[0], both)


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (2, 4, 5, 7), (2, 1, 5, 7), (1, 4, 5, 1), (1, 1, 1, 7)])
def test_masks_and_biases_broadcast_against_the_weights(shape):
    layer = attention(context_features=6)
    bias = jax.random.normal(KEY, shape)
    mask = jax.random.bernoulli(KEY, 0.7, shape).at[..., 0].set(True)
    wide = np.broadcast_to(bias, (2, 4, 5, 7))
    y = layer(X, CONTEXT, bias=bias)
    assert_close(y[1], by_hand(layer, X[1], CONTEXT[1], bias=wide[1]))
    masked = layer(X, CONTEXT, bias=jnp.where(mask, 0.0, -1e9))
    assert_close(layer(X, CONTEXT, mask=mask), masked)


@pytest.mark.parametrize("shape", [(2, 5, 7), (3, 5, 7), (7,), (2, 4, 5, 6), (1, 2, 4, 5, 7)])
def test_a_mask_whose_axes_nobody_could_tell_is_refused(shape):
    layer = attention(context_features=6)
    with pytest.raises(
        AxisError, match=r"the mask of attention must have axes \(q, kv\) or \(\*batch, heads, q, kv\)"
    ) as caught:
        layer(X, CONTEXT, mask=jnp.ones(shape, bool))
    assert "weights: (2, 4, 5, 7)" in str(caught.value)
    assert "write mask[..., None, :, :] for one with axes (*batch, q, kv)" in str(caught.value)


def test_masks_are_of_bools_and_biases_of_floats(unchecked):
    with pytest.raises(AxisError, match="this mask is float32"):
        attention()(X, mask=jnp.ones((5, 5)))
    with pytest.raises(AxisError, match="this bias is bool"):
        attention()(X, bias=jnp.ones((5, 5), bool))


def in_flax(layer, **options):
    """flax's attention with the parameters of a layer."""
    theirs = nnx.MultiHeadAttention(
        layer.num_heads,
        layer.features,
        num_kv_heads=layer.num_kv_heads,
        in_kv_features=layer.context_features,
        normalize_qk=layer.query_norm is not None,
        decode=False,
        rngs=nnx.Rngs(0),
        **options,
    )
    for part in ("query", "key", "value", "out"):
        ours, linear = getattr(layer, part), getattr(theirs, part)
        linear.kernel[...] = ours.kernel.reshape(linear.kernel.shape)
        linear.bias[...] = ours.bias.reshape(linear.bias.shape)
    return theirs


def norm_of_heads(size):
    return LayerNorm(size, use_bias=False)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@pytest.mark.parametrize("norm", [None, norm_of_heads])
def test_attention_equals_flax(heads, norm):
    layer = attention(heads[0], num_kv_heads=heads[1], qk_norm=norm, context_features=6)
    mask = jax.random.bernoulli(KEY, 0.5, (2, 1, 5, 7)).at[..., 0].set(True)
    theirs = in_flax(layer)
    assert_close(layer(X, CONTEXT, mask=mask), theirs(X, CONTEXT, mask=mask))
    ours = weft.grad(lambda layer: jnp.sum(layer(X, CONTEXT) ** 2))(layer).query.kernel
    gradient = nnx.grad(lambda theirs: jnp.sum(theirs(X, CONTEXT) ** 2))(theirs).query.kernel[...]
    np.testing.assert_allclose(ours, gradient.reshape(ours.shape), rtol=1e-3, atol=1e-4)


def test_attention_equals_equinox():
    layer, theirs = attention(use_bias=False), eqx.nn.MultiheadAttention(4, 8, key=KEY)
    kernels = [part.kernel.T for part in (layer.query, layer.key, layer.value, layer.out)]
    theirs = eqx.tree_at(
        lambda theirs: [
            part.weight for part in (theirs.query_proj, theirs.key_proj, theirs.value_proj, theirs.output_proj)
        ],
        theirs,
        kernels,
    )
    assert_close(layer(X)[0], theirs(X[0], X[0], X[0]))


def test_norms_of_queries_and_keys_make_their_scale_irrelevant():
    layer = attention(qk_norm=RMSNorm, use_bias=False)
    assert layer.query_norm is not layer.key_norm
    grown = weft.at(layer).query.kernel.apply(lambda kernel: 100 * kernel)
    assert_close(grown(X), layer(X))


def test_with_rope_only_distances_count():
    layer = attention(rope=RoPE(), causal=True)
    assert_close(layer(X, positions=jnp.arange(5) + 100), layer(X))
    assert_close(layer(X, positions=jnp.stack([jnp.arange(5), jnp.arange(5) + 3])), layer(X))
    assert not np.allclose(layer(X, positions=2 * jnp.arange(5)), layer(X), atol=1e-3)
    assert not np.allclose(attention(causal=True)(X), layer(X), atol=1e-3)


def test_a_function_of_the_users_own_may_turn_queries_and_keys():
    layer = attention(rope=lambda x, positions: 0 * x)
    uniform = attention(rope=None).replace(query=weft.tree.zeros_like(layer.query))
    assert_close(layer(X), uniform(X))


def test_dropout_drops_weights_by_the_key_and_nothing_in_inference():
    layer = attention(dropout=0.5)
    first, again, reseeded = (layer(X, key=jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, reseeded)
    assert_close(weft.inference_mode(layer)(X), attention()(X))
    assert_close(layer(X, inference=True), attention()(X))


def test_what_is_dropped_are_weights_and_their_mean_is_kept():
    # Values of one and maps that change nothing: what comes out is the sum of the weights that are left, scaled.
    layer = MultiHeadAttention(1, 1, dropout=0.25, kernel_init=jax.nn.initializers.ones, key=KEY)
    sums = layer(jnp.ones((1000, 16, 1)), key=KEY)
    allowed = np.arange(17) / 16 / 0.75
    np.testing.assert_allclose(np.abs(np.asarray(sums)[..., None] - allowed).min(-1), 0, atol=1e-5)
    assert len(np.unique(np.round(sums, 3))) > 5
    np.testing.assert_allclose(sums.mean(), 1.0, atol=0.01)


def test_dropout_without_a_key_is_refused():
    with pytest.raises(SeedError, match="Dropout draws from a typed key, not from nothing"):
        attention(dropout=0.5)(X)


def test_an_implementation_is_passed_on_and_refuses_what_it_cannot_do():
    assert_close(attention(implementation="xla")(X), attention()(X))
    with pytest.raises(ValueError, match="nonsense"):
        attention(implementation="nonsense")(X)
    with pytest.raises(ConfigError, match="'cudnn' does not support dropout of attention weights"):
        attention(implementation="cudnn", dropout=0.5)(X, key=KEY)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, None])
def test_it_computes_in_the_dtype_that_it_is_given(dtype):
    layer = attention(dtype=dtype)
    y = weft.jit(layer)(X)
    assert y.dtype == (dtype or jnp.float32)
    np.testing.assert_allclose(y.astype(jnp.float32), attention()(X), rtol=0.1, atol=0.05)


@pytest.mark.parametrize("batch", [(), (3,), (3, 2)])
def test_it_takes_any_leading_axes(batch):
    layer, x = attention(causal=True), jax.random.normal(KEY, (*batch, 5, 8))
    y = layer(x)
    assert y.shape == x.shape
    rows = jnp.reshape(x, (-1, 5, 8))
    assert_close(jnp.reshape(y, (-1, 5, 8)), jnp.stack([layer(row) for row in rows]))


@pytest.mark.slow
def test_it_crosses_every_transform():
    layer = attention(causal=True, rope=RoPE(), num_kv_heads=2)
    y = layer(X)
    assert_close(weft.jit(lambda layer, x: layer(x))(layer, X), y)
    assert_close(weft.vmap(layer)(X), y)
    assert_close(weft.scan(lambda layer, x: (layer, layer(x)))(layer, X)[1], y)
    stack = weft.Stack(lambda key: attention(causal=True).replace(query=weft.Linear(8, 8, key=key)), 2, key=KEY)
    assert_close(stack(X), stack[1](stack[0](X)))

    def loss(layer, x):
        return jnp.sum(layer(x) ** 2)

    gradient = weft.grad(weft.remat(loss))(layer, X)
    for direct, again in zip(jax.tree.leaves(weft.grad(loss)(layer, X)), jax.tree.leaves(gradient), strict=True):
        assert_close(again, direct)


def test_it_is_adapted_by_lora_and_saved_like_any_record(tmp_path):
    layer = weft.lora(attention(), 2, key=KEY)
    assert type(layer.query).__name__ == "LoRA"
    assert_close(layer(X), attention()(X))
    weft.save_checkpoint(tmp_path / "layer", layer)
    like = weft.lora(MultiHeadAttention(8, 4, key=jax.random.key(5)), 2, key=jax.random.key(6))
    assert_close(weft.load_checkpoint(tmp_path / "layer", like)(X), layer(X))


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ((8, 3), {}, "8 features cannot be divided among 3 heads"),
        ((8, 4), {"num_kv_heads": 3}, "num_heads=4 must be a multiple of num_kv_heads=3"),
        ((8, 0), {}, "num_heads must be positive, not 0"),
        ((8, 4), {"head_features": 0}, "head_features must be positive, not 0"),
        ((8, 4), {"window": (1, 2, 3)}, "window must be a number of keys before and after"),
        ((8, 4), {"window": -1}, "window must be a number of keys before and after"),
        ((8, 4), {"dropout": 2.0}, "rate must be a probability, not 2.0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, options, message):
    with pytest.raises(ConfigError, match=message):
        MultiHeadAttention(*sizes, key=KEY, **options)


def test_an_input_of_another_size_is_named(unchecked):
    with pytest.raises(AxisError, match="Linear takes 8 features on the last axis, not 6"):
        attention()(CONTEXT)


def test_layers_run_under_strict_promotion():
    layer = attention(causal=True, rope=RoPE(), qk_norm=RMSNorm, window=2, num_kv_heads=2)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        jax.eval_shape(layer, X)
        jax.eval_shape(lambda x: layer(x, mask=jnp.ones((5, 5), bool), bias=jnp.zeros((5, 5))), X)
        jax.eval_shape(lambda x: layer.replace(dropout=weft.Dropout(0.5))(x, key=KEY), X)
        jax.eval_shape(layer.with_cache(9, batch=(2,)), X)


def test_no_bias_brings_an_allowed_key_below_a_masked_one():
    query, key = jnp.zeros((1, 1, 4), jnp.float16), jnp.zeros((2, 1, 4), jnp.float16)
    bias, mask = jnp.array([[[-1e5, 0.0]]], jnp.float32), jnp.array([[[True, False]]])
    assert weft.ops.attention_weights(query, key, bias, mask).tolist() == [[[1.0, 0.0]]]


def test_the_op_of_jax_and_the_products_written_out_agree():
    query, key, value = (jax.random.normal(jax.random.key(i), (2, 5, 4, 2)) for i in range(3))
    weights = ops.attention_weights(query, key, is_causal=True)
    assert_close(ops.fused_attention(query, key, value, is_causal=True), ops.weighted_values(weights, value))
