"""Sums as pairs of floats, counts as pairs of words: compared with exact arithmetic."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from weft.modules.learning.exact import add_counts, add_sums, count_as_sum, count_of, exact_sum, ratio

FLOATS = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
summed = jax.jit(lambda values: exact_sum(values, jnp.float32))
divided = jax.jit(ratio)


def value(pair):
    return sum(Fraction(float(word)) for word in pair)


@given(st.lists(FLOATS, min_size=16, max_size=16))
def test_a_sum_is_good_to_far_more_digits_than_a_float_has(values):
    exact = sum(map(Fraction, values))
    assert abs(value(summed(jnp.array(values, jnp.float32))) - exact) <= sum(map(abs, values)) * 2.0**-42


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=16, max_size=16))
def test_a_sum_of_integers_is_exact(values):
    assert value(summed(jnp.array(values, jnp.int32))) == sum(values)


@given(st.integers(-(2**45), 2**45), st.integers(-(2**45), 2**45))
def test_sums_of_integers_add_exactly(a, b):
    def pair(number):
        high = np.float32(number)
        return jnp.array([high, np.float32(number - int(high))])

    assert value(jax.jit(add_sums)(pair(a), pair(b))) == a + b


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_counts_carry_into_their_second_word(a, b):
    high, low = add_counts(count_of(a), count_of(b)).tolist()
    assert (high << 32) + low == a + b


@given(st.integers(0, 2**46))
def test_a_count_is_the_sum_of_its_words(number):
    assert value(count_as_sum(count_of(number), jnp.float32)) == number


@given(st.lists(FLOATS, min_size=16, max_size=16), st.integers(1, 2**40))
def test_a_ratio_is_rounded_once(values, number):
    pair = summed(jnp.array(values, jnp.float32))
    exact = value(pair) / number
    assert float(divided(pair, count_of(number))) == pytest.approx(float(exact), rel=2.0**-23.9, abs=1e-37)


@pytest.mark.parametrize("dtype", [jnp.bool_, jnp.int8, jnp.uint8, jnp.int16, jnp.uint32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3), (0,), (2, 0)])
def test_every_shape_and_dtype_is_summed(shape, dtype):
    values = jnp.ones(shape, dtype)
    assert value(exact_sum(values, jnp.float32)) == values.size


def test_infinities_and_nans_are_what_they_are_in_a_plain_sum():
    assert summed(jnp.array([jnp.inf, 1.0])).tolist() == [jnp.inf, 0.0]
    assert bool(jnp.isnan(summed(jnp.array([jnp.nan, 1.0]))[0]))
    assert float(divided(jnp.array([jnp.inf, 0.0]), count_of(2))) == jnp.inf


def test_with_64_bit_numbers_pairs_are_of_float64():
    with jax.enable_x64(True):
        values = jnp.array([2**62, 1, -(2**62)], jnp.int64)
        assert value(exact_sum(values, jnp.float64)) == 1
        wide = jnp.array([1.0, 2.0**-40])
        assert value(exact_sum(wide, jnp.float32)) == 1 + Fraction(1, 2**40)
