"""Positions: RoPE, waves and learned tables, against the formulas and equinox."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.errors import AxisError, ConfigError
from weft.modules import LearnedPositions, RoPE, SinusoidalPositions, ops, sinusoidal

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (2, 5, 3, 8))


def by_hand(x, positions, base=10_000.0, scaling=1.0, interleaved=False):
    """Each pair of features as a complex number, turned."""
    half = x.shape[-1] // 2
    angles = positions[:, None, None] / scaling / base ** (np.arange(half) / half)
    x = np.asarray(x, np.float64)
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    turned = (first + 1j * second) * np.exp(1j * angles)
    y = np.empty_like(x)
    if interleaved:
        y[..., 0::2], y[..., 1::2] = turned.real, turned.imag
    else:
        y[..., :half], y[..., half:] = turned.real, turned.imag
    return y


@pytest.mark.parametrize("options", [{}, {"base": 500.0}, {"scaling": 4.0}, {"interleaved": True}])
def test_rope_turns_pairs_by_their_position(options):
    rope, positions = RoPE(**options), np.array([0, 1, 7, 100, 5])
    np.testing.assert_allclose(rope(X, jnp.asarray(positions)), by_hand(X, positions, **options), atol=1e-4)
    np.testing.assert_allclose(rope(X), by_hand(X, np.arange(5), **options), atol=1e-5)


def test_rope_equals_equinox():
    theirs = eqx.nn.RotaryPositionalEmbedding(8)
    np.testing.assert_allclose(RoPE()(X[0])[:, 1], theirs(X[0, :, 1]), atol=1e-5)


def test_scaled_positions_are_those_of_a_shorter_sequence():
    np.testing.assert_allclose(RoPE(scaling=2.0)(X, 2 * jnp.arange(5)), RoPE()(X), atol=1e-6)


def test_rope_keeps_lengths_and_dtypes_and_far_positions_apart():
    turned = RoPE()(X.astype(jnp.bfloat16), jnp.arange(5) + 70_000)
    assert turned.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        jnp.linalg.norm(turned.astype(jnp.float32), axis=-1), jnp.linalg.norm(X, axis=-1), rtol=0.02
    )
    first, second = RoPE()(jnp.ones((2, 1, 2), jnp.bfloat16), jnp.array([70_000, 70_001]))
    assert not np.allclose(first.astype(jnp.float32), second.astype(jnp.float32))


def test_rope_refuses_a_head_whose_features_are_no_pairs():
    with pytest.raises(AxisError, match="RoPE rotates pairs of features, so their number must be even, not 7"):
        RoPE()(X[..., :7])


@pytest.mark.parametrize("shape", [(4,), (1,), (3, 5), (2, 3, 5), ()])
def test_positions_that_are_not_those_of_the_sequence_are_refused(shape, unchecked):
    with pytest.raises(AxisError, match="RoPE takes one position for each element of the sequence") as caught:
        RoPE()(X, jnp.zeros(shape, jnp.int32))
    assert "places: (2, 5)" in str(caught.value)


def test_sinusoidal_is_waves_from_fast_to_slow():
    waves = sinusoidal(jnp.array([3.0]), features=8)[0]
    slow = 3.0 / 10_000.0 ** (np.arange(4) / 4)
    np.testing.assert_allclose(waves, np.concatenate([np.sin(slow), np.cos(slow)]), atol=1e-6)


@pytest.mark.slow
def test_positions_are_added_to_each_place():
    learned, waves = LearnedPositions(9, 4, key=KEY), SinusoidalPositions(4)
    x = jax.random.normal(KEY, (2, 3, 5, 4))
    np.testing.assert_allclose(learned(x) - x, jnp.broadcast_to(learned.embedding[:5], x.shape), atol=1e-6)
    np.testing.assert_allclose(
        waves(x) - x, jnp.broadcast_to(sinusoidal(jnp.arange(5), features=4), x.shape), atol=1e-6
    )
    assert waves(x.astype(jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("layer", [LearnedPositions(9, 4, key=KEY), SinusoidalPositions(4)])
def test_an_offset_gives_the_later_places(layer):
    x = jax.random.normal(KEY, (9, 4))
    step = weft.jit(lambda layer, x, offset: layer(x, offset=offset))
    np.testing.assert_allclose(step(layer, x[6:8], 6), layer(x)[6:8], atol=1e-6)
    np.testing.assert_allclose(layer(x[6:8], offset=6), layer(x)[6:8], atol=1e-6)
    over = weft.vmap(lambda x, offset: layer(x, offset=offset))(jnp.stack([x[:2], x[6:8]]), jnp.array([0, 6]))
    np.testing.assert_allclose(over[1], layer(x)[6:8], atol=1e-6)


def test_a_sequence_that_is_too_long_is_refused_or_nan():
    layer, x = LearnedPositions(4, 2, key=KEY), jnp.ones((3, 2))
    with pytest.raises(AxisError, match="LearnedPositions has 4 positions, and this sequence needs 5"):
        layer(x, offset=2)
    with pytest.raises(AxisError, match="positions count from 0, and this sequence begins at -1"):
        layer(x, offset=-1)
    traced = weft.jit(lambda layer, x, offset: layer(x, offset=offset))
    assert jnp.isnan(traced(layer, x, 2)).any(1).tolist() == [False, False, True]
    assert jnp.isnan(traced(layer, x, -1)).any(1).tolist() == [True, False, False]


def test_the_learned_table_is_learned():
    layer, x = LearnedPositions(4, 2, key=KEY), jnp.ones((3, 2))
    gradient = weft.grad(lambda layer: layer(x).sum())(layer).embedding
    assert gradient.tolist() == [[1.0, 1.0]] * 3 + [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SinusoidalPositions(3), "features must be even, not 3"),
        (lambda: sinusoidal(jnp.ones(2), features=5), "features must be even, not 5"),
        (lambda: RoPE(scaling=0.0), "RoPE: scaling must be positive, not 0.0"),
        (lambda: RoPE(-1.0), "RoPE: base must be positive"),
        (lambda: LearnedPositions(0, 2, key=KEY), "max_length must be positive, not 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_one_vector_is_no_sequence(unchecked):
    for layer in (LearnedPositions(4, 2, key=KEY), SinusoidalPositions(2)):
        with pytest.raises(AxisError, match="takes a sequence, an array with axes"):
            layer(jnp.ones(2))


def test_positions_run_under_strict_promotion():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        jax.eval_shape(lambda x: ops.rope(x, jnp.arange(5)), X)
        jax.eval_shape(LearnedPositions(9, 8, key=KEY), X)
        jax.eval_shape(SinusoidalPositions(8), X)


@pytest.mark.parametrize("turn", [ops.rope, weft.RoPE()], ids=["op", "layer"])
def test_an_odd_number_of_features_is_no_pairs(turn: Any):
    with pytest.raises(
        weft.errors.AxisError, match="RoPE rotates pairs of features, so their number must be even, not 3"
    ) as caught:
        turn(jnp.ones((2, 1, 3)), jnp.arange(2))
    assert "x: float32[2,1,3]" in str(caught.value)
