"""Rotary positions are flax's where it has them, and where a step of decoding is comes out right."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx as flax_nnx
from weft import nnx

from ..agreement import followed
from .twins import assert_equal, assert_same_state

SIZES = {"heads": 4, "depth": 8, "places": 6}
X = jax.random.normal(jax.random.key(0), (2, SIZES["places"], SIZES["heads"] * SIZES["depth"]))
HEADS = jnp.reshape(X, (2, SIZES["places"], SIZES["heads"], SIZES["depth"]))


def turned(x, positions, theta=10_000.0):
    """By the definition, of `(..., seq, features)`."""
    half = x.shape[-1] // 2
    angles = np.asarray(positions)[..., None] / theta ** (np.arange(half) / half)
    first, second = np.asarray(x)[..., :half], np.asarray(x)[..., half:]
    sin, cos = np.sin(angles), np.cos(angles)
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], -1)


def attention(library, rope, **options):
    attend = functools.partial(library.dot_product_attention_with_rope, rope=rope)
    size = X.shape[-1]
    return library.MultiHeadAttention(
        SIZES["heads"], size, attention_fn=attend, **{"decode": False, **options}, rngs=library.Rngs(0)
    )


@pytest.mark.parametrize("options", [{}, {"theta": 500.0}, {"embedding_size": 8, "max_seq_len": 9}], ids=str)
def test_pairs_are_turned_by_their_position(options):
    rope, x = nnx.RoPE(**options), jnp.swapaxes(HEADS, 1, 2)
    theta = options.get("theta", 10_000.0)
    np.testing.assert_allclose(rope(x), turned(x, np.arange(6), theta), atol=1e-5)
    np.testing.assert_allclose(rope(x, jnp.arange(6) + 3), turned(x, np.arange(6) + 3, theta), atol=1e-5)


@followed
@pytest.mark.parametrize("options", [{}, {"theta": 500.0}, {"embedding_size": 8, "max_seq_len": 9}], ids=str)
def test_rope_is_flaxs(options):
    theirs, ours = flax_nnx.RoPE(**options), nnx.RoPE(**options)
    assert_same_state(theirs, ours)
    x = jnp.swapaxes(HEADS, 1, 2)
    for dtype in (jnp.float32, jnp.bfloat16):
        assert_equal(theirs(x.astype(dtype)), ours(x.astype(dtype)), 1e-6)
    assert_equal(attention(flax_nnx, theirs)(X), attention(nnx, ours)(X), 1e-5)


def test_positions_of_a_batch_are_those_of_its_places():
    rope = nnx.RoPE()
    positions = jnp.array([[0, 1, 2, 3, 4, 5], [7, 3, 1, 0, 2, 2]])
    actual = nnx.dot_product_attention_with_rope(HEADS, HEADS, HEADS, rope=rope, input_positions=positions)
    q = jnp.stack([jax.vmap(rope, (-2, None), -2)(x, places) for x, places in zip(HEADS, positions, strict=True)])
    assert_equal(actual, nnx.dot_product_attention(q, q, HEADS), 1e-5)
    layer = attention(nnx, rope)
    assert_equal(layer(X, input_positions=positions + 10), layer(X, input_positions=positions), 1e-5)


def test_decoding_turns_each_query_by_its_step():
    layer = attention(nnx, nnx.RoPE(), decode=True)
    layer.init_cache(X.shape)
    steps = [layer(X[:, i : i + 1]) for i in range(SIZES["places"])]
    assert_equal(jnp.concatenate(steps, 1), layer(X, decode=False, mask=nnx.make_causal_mask(X[..., 0])), 1e-5)


def test_decoding_with_is_causal_sees_all_earlier_steps():
    layer = nnx.MultiHeadAttention(2, X.shape[-1], decode=True, rngs=nnx.Rngs(0))
    layer.init_cache(X.shape)
    steps = [layer(X[:, i : i + 1], is_causal=True) for i in range(SIZES["places"])]
    assert_equal(jnp.concatenate(steps, 1), layer(X, decode=False, is_causal=True), 1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nnx.RoPE(embedding_size=8), "either both `embedding_size` and `max_seq_len`"),
        (lambda: nnx.RoPE(embedding_size=7, max_seq_len=2), "must be positive and even, not 7"),
        (lambda: nnx.RoPE()(jnp.ones((3, 5))), "must be positive and even, not 5"),
        (lambda: nnx.RoPE()(jnp.ones((3, 4)), jnp.arange(2)), "must have the same seq_len"),
        (lambda: nnx.RoPE(embedding_size=4, max_seq_len=2)(jnp.ones((3, 4))), "tables for 2 positions, but this"),
    ],
)
def test_what_cannot_be_turned_is_said(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("rate", [-0.5, 1.0, 1.5, float("nan"), float("inf")])
def test_a_rate_of_dropout_is_a_probability_below_one(rate):
    with pytest.raises(ValueError, match=r"dropout_rate must be in the range \[0, 1\)"):
        nnx.dot_product_attention(HEADS, HEADS, HEADS, dropout_rate=rate, dropout_rng=jax.random.key(0))


def test_a_layer_takes_its_input_by_name():
    layers = [
        nnx.Linear(4, 2, rngs=nnx.Rngs(0)),
        nnx.LayerNorm(4, rngs=nnx.Rngs(0)),
        nnx.Conv(4, 2, 3, rngs=nnx.Rngs(0)),
    ]
    for layer in layers:
        first = next(iter(inspect.signature(layer.__call__).parameters))
        x = jnp.ones((1, 5, 4))
        assert_equal(layer(x), layer(**{first: x}), 0)
        with pytest.raises(ValueError, match="features on the last axis, not 3"):
            layer(**{first: x[..., :3]})
