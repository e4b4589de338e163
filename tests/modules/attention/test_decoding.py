"""Attention with a cache: step by step it gives what it gives at once, wherever in a model it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.errors import CacheError, FilterError
from weft.modules import KeyValueCache, LayerNorm, MultiHeadAttention, RMSNorm, RoPE
from weft.modules.attention.dot_product import cache_step
from weft.typecheck import verify

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (2, 6, 8))
EVERY = weft.filters.InstanceOf(MultiHeadAttention)


def attention(key=KEY, **options):
    return MultiHeadAttention(8, 4, causal=True, key=key, **options)


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def decoded(layer, x, chunks):
    """A layer's results for chunks of a sequence, one after another."""
    results, start = [], 0
    for size in chunks:
        y, layer = layer(x[..., start : start + size, :])
        results.append(y)
        start += size
    return jnp.concatenate(results, -2), layer


@pytest.mark.one_in(4)
@pytest.mark.parametrize("chunks", [(1,) * 6, (4, 1, 1), (6,), (2, 3, 1)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_kv_heads": 2, "rope": RoPE(), "qk_norm": RMSNorm},
        {"window": 2},
        {"window": (3, 1), "num_kv_heads": 1, "rope": RoPE(scaling=2.0, interleaved=True)},
    ],
    ids=["plain", "grouped", "window", "all"],
)
def test_step_by_step_gives_what_the_whole_gives(chunks, options):
    layer = attention(**options)
    y, after = decoded(layer.with_cache(9, batch=(2,)), X, chunks)
    assert_close(y, layer(X))
    assert int(after.cache.index) == 6
    assert_close(after.without_cache()(X), y)


def test_a_cache_is_of_kind_cache_and_only_it_changes():
    before = attention().with_cache(6)
    y, after = weft.jit(lambda layer, x: layer(x))(before, X[0, :2])
    assert y.shape == (2, 8)
    rest = weft.tree.select(after, weft.filters.Not(weft.Cache))
    assert len(jax.tree.leaves(weft.tree.select(after, weft.Cache))) == 3
    for old, new in zip(
        jax.tree.leaves(weft.tree.select(before, weft.filters.Not(weft.Cache))), jax.tree.leaves(rest), strict=True
    ):
        assert new is old
    assert weft.tree.size(before) == weft.tree.size(attention())


def test_the_same_attention_is_pure_until_it_has_a_cache():
    layer = attention()
    assert isinstance(layer(X), jax.Array)
    assert isinstance(layer.with_cache(6, batch=(2,))(X), tuple)
    assert isinstance(layer.with_cache(6).without_cache()(X), jax.Array)


def test_one_compiled_step_serves_for_all_of_a_sequence():
    traces = []

    @weft.jit
    def step(layer, x):
        traces.append(None)
        return layer(x)

    layer, expected = attention(rope=RoPE()).with_cache(6, batch=(2,)), attention(rope=RoPE())(X)
    for i in range(6):
        y, layer = step(layer, X[:, i : i + 1])
        assert_close(y, expected[:, i : i + 1])
    assert len(traces) == 1


@pytest.mark.slow
def test_decoding_is_carried_by_scan_and_mapped_by_vmap():
    layer = attention(rope=RoPE())
    _, ys = weft.scan(lambda layer, x: layer(x[:, None])[::-1])(layer.with_cache(6, batch=(2,)), jnp.moveaxis(X, 1, 0))
    assert_close(jnp.moveaxis(ys[:, :, 0], 0, 1), layer(X))
    # Two sequences that are at different steps: each has a cache of its own.
    caches = weft.tree.stack([decoded(layer.with_cache(6), X[i], [i + 1])[1] for i in range(2)])
    nexts = jnp.stack([X[0, 1:2], X[1, 2:3]])
    y, after = weft.vmap(lambda layer, x: layer(x))(caches, nexts)
    assert_close(y[:, 0], jnp.stack([layer(X)[0, 1], layer(X)[1, 2]]))
    assert after.cache.index.tolist() == [2, 3]


class Block(weft.Module):
    """A user's block, which does not know whether its attention has a cache."""

    norm: LayerNorm
    attention: MultiHeadAttention

    def __init__(self, *, key):
        self.norm, self.attention = LayerNorm(8), attention(key, rope=RoPE(), num_kv_heads=2)

    def __call__(self, x):
        with weft.thread(self) as t:
            return t.done(x + t.attention(t.norm(x)))


@pytest.mark.slow
@pytest.mark.parametrize("remat", [False, True])
def test_caches_are_put_into_the_layers_of_a_stack(remat):
    stack = weft.Stack(lambda key: Block(key=key), 3, key=KEY, remat=remat)
    expected, _ = stack(X)
    decoding = weft.at(stack, EVERY).apply(lambda layer: layer.with_cache(6, batch=(2,)))
    assert decoding.layers.attention.cache.keys.shape == (3, 2, 6, 2, 2)
    step = weft.jit(lambda stack, x: stack(x))
    results = []
    for i in range(6):
        y, decoding = step(decoding, X[:, i : i + 1])
        results.append(y)
    assert_close(jnp.concatenate(results, 1), expected)
    assert decoding.layers.attention.cache.index.tolist() == [6, 6, 6]


@pytest.mark.slow
def test_a_stack_of_pure_attention_becomes_stateful_with_its_caches():
    stack = weft.Stack(lambda key: weft.Residual(attention(key)), 2, key=KEY)
    expected = stack(X)
    decoding = weft.at(stack, EVERY).apply(lambda layer: layer.with_cache(6, batch=(2,)))
    y, after = decoding(X)
    assert_close(y, expected)
    assert after.layers.layer.cache.index.tolist() == [6, 6]
    assert_close(weft.at(after, EVERY).apply(MultiHeadAttention.without_cache)(X), expected)


def test_a_chain_of_pure_layers_does_not_lose_a_cache():
    chain = weft.Sequential(LayerNorm(8), attention().with_cache(6, batch=(2,)))
    with pytest.raises(weft.core.SuccessorError, match="a MultiHeadAttention is stateful, and Sequential would lose"):
        chain(X)


def test_a_cache_that_is_saved_goes_on_where_it_was(tmp_path):
    layer = attention(rope=RoPE())
    _, half = decoded(layer.with_cache(6, batch=(2,)), X, [3])
    weft.save_checkpoint(tmp_path / "half", half)
    loaded = weft.load_checkpoint(tmp_path / "half", layer.with_cache(6, batch=(2,)))
    assert_close(decoded(loaded, X[:, 3:], [3])[0], layer(X)[:, 3:])


@pytest.mark.slow
def test_adapted_layers_get_caches_too():
    stack = weft.Stack(lambda key: weft.lora(Block(key=key), 2, key=key), 2, key=KEY)
    decoding = weft.at(stack, EVERY).apply(lambda layer: layer.with_cache(6, batch=(2,)))
    assert decoding.layers.attention.cache.keys.shape == (2, 2, 6, 2, 2)
    assert_close(decoding(X)[0], stack(X)[0])


@pytest.mark.slow
def test_a_full_cache_is_an_error_where_it_can_be_known():
    _, full = attention().with_cache(6)(X[0])
    with pytest.raises(CacheError, match="room for 6 steps, and the call has 1 after the 6 in the cache") as caught:
        full(X[0, :1])
    assert "fix: with_cache of a larger max_length" in str(caught.value)
    with pytest.raises(CacheError, match="this cache has room for 4 steps, and the call has 6"):
        weft.jit(lambda layer, x: layer(x))(attention().with_cache(4), X[0])


@pytest.mark.slow
def test_what_goes_beyond_a_cache_is_nan_in_compiled_code():
    step = weft.jit(lambda layer, x: layer(x))
    layer = attention().with_cache(6)
    y, layer = step(layer, X[0, :5])
    assert jnp.isfinite(y).all()
    y, layer = step(layer, X[0, :2])
    assert jnp.isnan(y).all()
    assert jnp.isnan(step(layer, X[0, :1])[0]).all()
    error, _ = weft.checkify(step)(layer, X[0, :1])
    assert "steps beyond the end of the cache of a MultiHeadAttention" in str(error.get())


@pytest.mark.parametrize("batch", [(), (3,), (2, 1)])
def test_a_batch_that_a_cache_is_not_for_is_refused(batch, unchecked):
    with pytest.raises(CacheError, match="the batch axes of the input differ from those of the cache") as caught:
        attention().with_cache(6, batch=batch)(X)
    assert "fix: with_cache(6, batch=(2,))" in str(caught.value)


def test_a_context_is_nothing_for_a_cache():
    with pytest.raises(CacheError, match="has a cache of its own earlier steps, and was given a context"):
        attention().with_cache(6, batch=(2,))(X, X)


def test_attention_that_sees_what_comes_has_no_cache():
    with pytest.raises(CacheError, match="this attention also attends to later steps"):
        MultiHeadAttention(8, 4, key=KEY).with_cache(6)
    with pytest.raises(FilterError):
        weft.at(LayerNorm(8), EVERY).apply(lambda layer: layer.with_cache(6))


def test_a_mask_over_a_cache_hides_its_places():
    layer = attention()
    mask = jnp.ones((6, 6), bool).at[:, 1].set(False).at[1, 1].set(True)
    decoding = layer.with_cache(6, batch=(2,))
    results = []
    for i in range(6):
        y, decoding = decoding(X[:, i : i + 1], mask=mask[i : i + 1])
        results.append(y)
    assert_close(jnp.concatenate(results, 1), layer(X, mask=mask))


def test_a_cache_may_be_of_a_smaller_dtype():
    layer = attention()
    decoding = layer.with_cache(6, batch=(2,), dtype=jnp.bfloat16)
    y, after = decoded(decoding, X, [3, 3])
    assert after.cache.keys.dtype == jnp.bfloat16
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, layer(X), atol=0.05)
    assert attention(dtype=jnp.bfloat16).with_cache(6).cache.keys.dtype == jnp.bfloat16


def test_caches_are_donated_without_a_second_copy():
    step = weft.jit(lambda layer, x: layer(x), donate_argnums=0)
    layer = weft.tree.copy(attention().with_cache(6))
    _, after = step(layer, X[0, :1])
    assert layer.cache.keys.is_deleted()
    assert jnp.isfinite(step(after, X[0, 1:2])[0]).all()


def test_each_of_an_ensemble_has_its_cache():
    ensemble = weft.Ensemble(lambda key: attention(key), 3, key=KEY)
    decoding = weft.at(ensemble, EVERY).apply(lambda layer: layer.with_cache(6, batch=(2,)))
    y, after = decoding(X)
    assert_close(y, ensemble(X))
    assert after.members.cache.index.tolist() == [6, 6, 6]


@pytest.mark.slow
def test_decoding_holds_for_all_sizes():
    # Only attention that is causal has caches, and the class alone does not say that it is.
    assert verify(attention().with_cache).ok


def test_a_cache_says_its_sizes():
    with pytest.raises(weft.errors.ConfigError, match="max_length must be positive, not 0"):
        KeyValueCache(0, 1, 1)


def test_one_number_of_steps_for_all_rows_may_be_an_array_of_size_one():
    cached, step = jnp.zeros((2, 4, 1, 3)), jnp.ones((2, 1, 1, 3))
    of_array = cache_step(cached, cached, jnp.array([2]), step, step)
    for array, expected in zip(of_array, cache_step(cached, cached, jnp.array(2), step, step), strict=True):
        assert array.shape == expected.shape
        assert (array == expected).all()
