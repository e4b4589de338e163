"""TransformerBlock: its parts with ways around them, its options, its caches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.core.records.keys import SeedError
from weft.errors import ConfigError
from weft.modules import MultiHeadAttention, RMSNorm, RoPE, TransformerBlock
from weft.typecheck import verify

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (2, 5, 8))


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def with_caches(model, length=5, batch=(2,)):
    attentions = weft.at(model, weft.filters.InstanceOf(MultiHeadAttention))
    return attentions.apply(lambda attention: attention.with_cache(length, batch=batch))


@pytest.mark.slow
def test_a_block_adds_what_its_attention_and_its_mlp_give():
    block = TransformerBlock(8, 2, key=KEY)
    x = X + block.attention(block.attention_norm(X))
    assert_close(block(X), x + block.mlp(block.mlp_norm(x)))


@pytest.mark.slow
def test_options_reach_the_parts():
    block = TransformerBlock(
        8,
        4,
        key=KEY,
        hidden_features=3,
        norm=RMSNorm,
        activation=jax.nn.silu,
        use_bias=False,
        param_dtype=jnp.bfloat16,
        num_kv_heads=2,
        rope=RoPE(),
        causal=True,
        window=2,
    )
    assert block.mlp[0].kernel.shape == (8, 3)
    assert block.mlp[1] is jax.nn.silu
    assert isinstance(block.mlp_norm, RMSNorm)
    assert (block.attention.num_kv_heads, block.attention.window, block.attention.causal) == (2, (2, 2), True)
    linears = weft.tree.select(block, weft.filters.InstanceOf(weft.Linear))
    assert {leaf.dtype for leaf in jax.tree.leaves(linears)} == {jnp.dtype(jnp.bfloat16)}
    assert len(jax.tree.leaves(linears)) == 6
    with pytest.raises(TypeError, match="unknown"):
        TransformerBlock(8, 4, key=KEY, unknown=1)


def test_another_layer_may_stand_for_the_mlp():
    block = TransformerBlock(8, 2, key=KEY, mlp=lambda key: weft.Linear(8, 8, use_bias=False, key=key))
    x = X + block.attention(block.attention_norm(X))
    assert_close(block(X), x + block.mlp_norm(x) @ block.mlp.kernel)


def test_masks_biases_and_positions_reach_the_attention():
    block = TransformerBlock(8, 2, key=KEY, rope=RoPE())
    options = {"mask": jnp.tril(jnp.ones((5, 5), bool)), "bias": jnp.eye(5), "positions": 3 * jnp.arange(5)}
    x = X + block.attention(block.attention_norm(X), **options)
    assert_close(block(X, **options), x + block.mlp(block.mlp_norm(x)))


@pytest.mark.slow
def test_dropout_is_everywhere_by_keys_of_its_own_and_nowhere_in_inference():
    block = TransformerBlock(8, 2, key=KEY, dropout=0.5)
    first, again, reseeded = (block(X, key=jax.random.key(seed)) for seed in (0, 0, 1))
    assert_close(first, again)
    assert not np.allclose(first, reseeded)
    assert_close(weft.inference_mode(block)(X), TransformerBlock(8, 2, key=KEY)(X))
    with pytest.raises(SeedError):
        block(X)
    stack = weft.Stack(lambda key: TransformerBlock(8, 2, key=key, dropout=0.5), 2, key=KEY)
    keys = jax.random.split(KEY)
    assert_close(stack(X, key=KEY), stack[1](stack[0](X, key=keys[0]), key=keys[1]))


@pytest.mark.slow
@pytest.mark.parametrize("remat", [False, True])
def test_a_stack_of_blocks_decodes_what_it_gives_at_once(remat):
    def make(key):
        return TransformerBlock(8, 4, causal=True, rope=RoPE(), num_kv_heads=2, key=key)

    stack = weft.Stack(make, 3, key=KEY, remat=remat)
    expected, decoding = stack(X), with_caches(stack)
    step = weft.jit(lambda stack, x: stack(x))
    results = []
    for start, size in ((0, 2), (2, 1), (3, 1), (4, 1)):
        y, decoding = step(decoding, X[:, start : start + size])
        results.append(y)
    assert_close(jnp.concatenate(results, 1), expected)
    assert decoding.layers.attention.cache.index.tolist() == [5, 5, 5]


def test_it_is_pure_until_its_attention_has_a_cache():
    block = TransformerBlock(8, 2, causal=True, key=KEY)
    assert isinstance(block(X), jax.Array)
    y, after = with_caches(block)(X)
    assert_close(y, block(X))
    assert isinstance(weft.at(after).attention.apply(MultiHeadAttention.without_cache)(X), jax.Array)


@pytest.mark.slow
def test_blocks_cross_every_transform(tmp_path):
    block = TransformerBlock(8, 2, causal=True, key=KEY)
    y = block(X)
    assert_close(weft.jit(lambda block, x: block(x))(block, X), y)
    assert_close(weft.vmap(block)(X), y)
    assert_close(weft.scan(lambda x, block: (block(x), None))(X, weft.tree.stack([block]))[0], y)

    def loss(block):
        return jnp.sum(block(X) ** 2)

    for actual, expected in zip(
        jax.tree.leaves(weft.grad(weft.remat(loss))(block)), jax.tree.leaves(weft.grad(loss)(block)), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)
    weft.save_checkpoint(tmp_path / "block", block)
    like = TransformerBlock(8, 2, causal=True, key=jax.random.key(4))
    assert_close(weft.load_checkpoint(tmp_path / "block", like)(X), y)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="8 features cannot be divided among 3 heads"):
        TransformerBlock(8, 3, key=KEY)


@pytest.mark.slow
def test_a_block_holds_for_all_sizes():
    assert verify(TransformerBlock).ok


def test_blocks_run_under_strict_promotion():
    block = TransformerBlock(8, 2, causal=True, rope=RoPE(), dropout=0.1, key=KEY)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        jax.eval_shape(lambda x: block(x, key=KEY), X)
        jax.eval_shape(with_caches(weft.inference_mode(block)), X)
