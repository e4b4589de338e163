"""Choosing from logits: what the two ops keep, against a loop over sorted choices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.modules.ops import keep_top_k, keep_top_p

LOGITS = 3 * jax.random.normal(jax.random.key(0), (4, 11))


def kept_by_loop(row, stay):
    """The row with what a loop over its choices, the likeliest first, keeps."""
    probabilities = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
    order, filtered, total = np.argsort(-row), np.full_like(row, -np.inf), 0.0
    for count, place in enumerate(order):
        if stay(count, total):
            filtered[place] = row[place]
        total += probabilities[place]
    return filtered


@pytest.mark.parametrize("k", [1, 3, 11, 40])
def test_top_k_keeps_the_k_likeliest(k):
    expected = [kept_by_loop(row, lambda count, total: count < k) for row in np.asarray(LOGITS)]
    np.testing.assert_array_equal(keep_top_k(LOGITS, k=k), np.stack(expected))


@pytest.mark.parametrize("p", [0.0, 0.3, 0.9, 1.0])
def test_top_p_keeps_the_likeliest_that_reach_p(p):
    expected = [kept_by_loop(row, lambda count, total: count == 0 or total < p) for row in np.asarray(LOGITS)]
    np.testing.assert_array_equal(keep_top_p(LOGITS, p=p), np.stack(expected))


def test_what_is_dropped_is_never_drawn():
    filtered = keep_top_p(keep_top_k(LOGITS / 0.7, k=4), p=0.8)
    drawn = jax.random.categorical(jax.random.key(1), filtered, shape=(500, 4))
    assert jnp.isfinite(filtered).sum(-1).min() >= 1
    assert jnp.isfinite(jnp.take_along_axis(filtered, drawn.T, 1)).all()


def test_half_precision_keeps_its_dtype_and_its_likeliest():
    logits = jnp.zeros(300, jnp.bfloat16).at[7].set(1)
    filtered = keep_top_p(logits, p=0.0)
    assert filtered.dtype == jnp.bfloat16
    assert jnp.flatnonzero(jnp.isfinite(filtered)).tolist() == [7]
    assert weft.jit(lambda logits, p: keep_top_p(logits, p=p))(logits, jnp.array(0.5)).dtype == jnp.bfloat16


@pytest.mark.parametrize("k", [0, -1, 1.5])
def test_a_number_of_choices_that_makes_no_sense_is_refused(k, unchecked):
    with pytest.raises(weft.errors.ConfigError, match="keeps a positive number of choices, not"):
        keep_top_k(LOGITS, k=k)
