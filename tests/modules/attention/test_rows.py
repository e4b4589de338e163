"""Rows of a batch at different steps: each decodes as it would alone, without a mask by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.errors import CacheError
from weft.modules import KeyValueCache, MultiHeadAttention, RMSNorm, RoPE

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (3, 8, 8))
LENGTHS = jnp.array([5, 2, 4])


def attention(key=KEY, **options):
    return MultiHeadAttention(8, 4, causal=True, key=key, **options)


def padded(x, lengths):
    """Rows cut to their lengths; behind these is what no row may see."""
    return jnp.where(jnp.arange(x.shape[1])[:, None] < lengths[:, None, None], x, 1e4)


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def nexts(lengths, i, count=1):
    """The steps of each row behind its prompt."""
    return jnp.stack([X[row, length + i : length + i + count] for row, length in enumerate(lengths.tolist())])


@pytest.mark.parametrize(
    "options",
    [{}, {"num_kv_heads": 2, "rope": RoPE(), "qk_norm": RMSNorm}, {"window": 2, "rope": RoPE(interleaved=True)}],
    ids=["plain", "rope", "window"],
)
@pytest.mark.parametrize("count", [1, 3])
def test_prompts_of_unequal_length_decode_as_each_does_alone(options, count):
    layer = attention(**options)
    alone = layer(X)
    y, decoding = layer.with_cache(8, batch=(3,))(padded(X[:, :5], LENGTHS))
    decoding = weft.rewind(decoding, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        assert_close(y[row, :length], alone[row, :length])
    step = weft.jit(lambda layer, x: layer(x))
    for i in range(0, 3, count):
        y, decoding = step(decoding, nexts(LENGTHS, i, count))
        expected = [alone[row, length + i : length + i + count] for row, length in enumerate(LENGTHS.tolist())]
        assert_close(y, jnp.stack(expected))
    assert decoding.cache.index.tolist() == (LENGTHS + 3).tolist()


def test_rows_of_a_stack_are_rewound_together():
    stack = weft.Stack(lambda key: weft.TransformerBlock(8, 2, causal=True, rope=RoPE(), key=key), 2, key=KEY)
    expected = stack(X)
    decoding = weft.at(stack, weft.filters.InstanceOf(MultiHeadAttention)).apply(lambda a: a.with_cache(8, batch=(3,)))
    _, decoding = decoding(padded(X[:, :5], LENGTHS))
    decoding = weft.rewind(decoding, LENGTHS)
    assert decoding.layers.attention.cache.index.tolist() == [LENGTHS.tolist()] * 2
    y, decoding = weft.jit(lambda stack, x: stack(x))(decoding, nexts(LENGTHS, 0))
    assert_close(y[:, 0], jnp.stack([expected[row, length] for row, length in enumerate(LENGTHS.tolist())]))


def test_rows_of_several_batch_axes_have_an_index_each():
    layer, x, lengths = attention(), X.reshape(3, 1, 8, 8), LENGTHS[:, None]
    _, decoding = layer.with_cache(8, batch=(3, 1))(x[:, :, :5])
    y, _ = weft.rewind(decoding, lengths)(nexts(LENGTHS, 0)[:, None])
    assert_close(y[:, 0, 0], jnp.stack([layer(X)[row, length] for row, length in enumerate(LENGTHS.tolist())]))


def test_one_number_rewinds_all_rows_and_keeps_one_index():
    layer = attention(rope=RoPE())
    _, decoding = layer.with_cache(8, batch=(3,))(X[:, :6])
    back = weft.rewind(decoding, 4)
    assert back.cache.index.shape == ()
    assert_close(back(X[:, 4:5])[0], layer(X)[:, 4:5])


def test_a_row_that_is_full_is_nan_and_the_others_go_on():
    layer = attention().with_cache(5, batch=(3,))
    _, decoding = layer(X[:, :5])
    step = weft.jit(lambda layer, x: layer(x))
    y, _ = step(weft.rewind(decoding, LENGTHS), X[:, :1])
    assert jnp.isnan(y).all((1, 2)).tolist() == [True, False, False]
    assert jnp.isfinite(y[1:]).all()
    error, _ = weft.checkify(step)(weft.rewind(decoding, LENGTHS), X[:, :1])
    assert "steps beyond the end of the cache of a MultiHeadAttention" in str(error.get())
    with pytest.raises(CacheError, match="room for 5 steps, and the call has 1 after the 5 in the cache"):
        weft.rewind(decoding, LENGTHS)(X[:, :1])


def test_a_cache_is_not_rewound_to_what_it_has_not_seen():
    _, decoding = attention().with_cache(8, batch=(3,))(X[:, :3])
    with pytest.raises(CacheError, match="a cache cannot be rewound to more steps than it holds") as caught:
        weft.rewind(decoding, LENGTHS)
    assert "steps: [5, 2, 4], cache.index: 3" in str(caught.value)
    with pytest.raises(CacheError, match="a cache cannot be rewound to more steps than it holds"):
        weft.rewind(decoding, -1)


def test_lengths_that_are_not_the_rows_are_refused(unchecked):
    cache = KeyValueCache(8, 2, 4, batch=(3,))
    with pytest.raises(CacheError, match="to a number of steps, or to a number for each row") as caught:
        weft.rewind(cache, jnp.zeros(2, jnp.int32))
    assert "steps: (2,), batch axes of cache.keys: (3,)" in str(caught.value)


def test_a_model_without_a_cache_is_not_rewound():
    with pytest.raises(weft.errors.FilterError):
        weft.rewind(attention(), LENGTHS)


def test_rows_are_rewound_within_compiled_code():
    layer = attention()

    @weft.jit
    def follow(layer, prompt, lengths, x):
        _, layer = layer(prompt)
        return weft.rewind(layer, lengths)(x)

    y, after = follow(layer.with_cache(8, batch=(3,)), padded(X[:, :5], LENGTHS), LENGTHS, nexts(LENGTHS, 0))
    assert_close(y[:, 0], jnp.stack([layer(X)[row, length] for row, length in enumerate(LENGTHS.tolist())]))
    assert after.cache.index.tolist() == (LENGTHS + 1).tolist()
