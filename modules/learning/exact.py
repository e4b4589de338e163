"""Exact sums and counts, for metrics that accumulate for days.

A float32 has 24 bits. A plain float32 sum stands still once it is 2**24 times as large as what is added, a count of
ones at 16,777,216; an int32 count wraps at 2**31. So a sum is kept as a *pair*, an array `[high, low]` of two floats
whose exact sum it is: 48 bits, in which sums of integers are exact up to 2**46 and others good to 13 digits. A count is
kept as two words of 32 bits, `[high, low]`. (JAX has no 64-bit numbers unless the whole process is told to; if it is,
pairs are of float64.)

All functions build on *error-free sums*: `a + b` is `s + e` exactly, with `s` rounded and `e` what rounding took. No
rounded product is ever subtracted again, since a compiler may contract it with the subtraction (fused multiply-add) and
take the error away; products are of halves short enough to be exact.

Source: Knuth, The Art of Computer Programming 2, 4.2.2; Joldes, Muller and Popescu, "Tight and Rigorous Error Bounds
for Basic Building Blocks of Double-Word Arithmetic", 2017.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, UInt32

Words = tuple[Array, Array]  # a pair while it is computed with: (high, low), arrays of one shape


def zero_sum() -> Float[Array, "2"]:
    """Returns the pair of an empty sum, in the widest float dtype that JAX is set to."""
    return jnp.zeros(2, jnp.result_type(float))


def exact_sum(values: Array, dtype: Any = jnp.float32) -> Float[Array, "2"]:
    """Sums all values to a pair.

    Args:
        values: floats, integers or bools of any shape.
        dtype: of the pair.

    >>> exact_sum(jnp.array([2.0**30, 1.0, -(2.0**30), 2.0**-30]), jnp.float32).tolist()
    [1.0, 9.313225746154785e-10]
    """
    high, low = words_of(values, jnp.dtype(dtype))
    zero = np.zeros((), dtype)
    # The leading axis is reduced last. If the batch is divided, each device first sums its own rows, and only the sums
    # cross devices.
    for dims in (tuple(range(1, high.ndim)), (0,)) if high.ndim else ():
        if dims:
            high, low = lax.reduce((high, low), (zero, zero), _add, dims)
    return jnp.stack([high, low])


def add_sums(a: Float[Array, "2"], b: Float[Array, "2"]) -> Float[Array, "2"]:
    """Adds two pairs."""
    return jnp.stack(_add((a[0], a[1]), (b[0], b[1])))


def rounded(pair: Float[Array, "2"]) -> Float[Array, ""]:
    """Returns the float nearest to a pair."""
    return pair[0] + pair[1]


def ratio(pair: Float[Array, "2"], count: UInt32[Array, "2"]) -> Float[Array, ""]:
    """Divides a sum by a count, with one rounding; NaN for a count of zero."""
    divisor = count_as_sum(count, pair.dtype)
    quotient = pair[0] / divisor[0]
    # The remainder of the division. Each product is of two halves and so exact: a rounded product would lose the digits
    # that the remainder consists of.
    (q, q_rest), (d, d_rest) = _halves(quotient), _halves(divisor[0])
    remainder = (((pair[0] - q * d) - q * d_rest) - q_rest * d) - q_rest * d_rest
    remainder = remainder + (pair[1] - quotient * divisor[1])
    return jnp.where(jnp.isfinite(quotient), quotient + remainder / divisor[0], quotient)


def _add(a: Words, b: Words) -> Words:
    high, low = _two_sum(a[0], b[0])
    more, rest = _two_sum(a[1], b[1])
    high, low = _ordered_sum(high, low + more)
    return _ordered_sum(high, low + rest)


def _two_sum(a: Array, b: Array) -> Words:
    total = a + b
    rounded_b = total - a
    return total, _finite(total, (a - (total - rounded_b)) + (b - rounded_b))


def _ordered_sum(a: Array, b: Array) -> Words:
    """The same for `a` at least as large as `b`."""
    total = a + b
    return total, _finite(total, b - (total - a))


def _finite(total: Array, error: Array) -> Array:
    # inf - inf is NaN: the error of an infinite sum would turn the infinity, which says what happened, into NaN.
    return jnp.where(jnp.isfinite(total), error, jnp.zeros_like(error))


def words_of(values: Array, dtype: np.dtype) -> Words:
    """Converts values to pairs `(high, low)`, element by element, without rounding."""
    source, wide = values.dtype, np.dtype(dtype).itemsize
    if jnp.issubdtype(source, jnp.integer) and source.itemsize >= wide:
        bits = 4 * source.itemsize
        # An int32 has more digits than a float32, so it is converted in two halves, each of which is exact.
        upper, lower = values >> bits, values & ((1 << bits) - 1)
        return _two_sum(upper.astype(dtype) * np.asarray(2**bits, dtype), lower.astype(dtype))
    high = values.astype(dtype)
    if jnp.issubdtype(source, jnp.floating) and source.itemsize > wide:
        return high, _finite(high, (values - high.astype(source)).astype(dtype))
    return high, jnp.zeros_like(high)


def _halves(value: Array) -> Words:
    """Splits a float into two floats with half of its bits each.

    The usual way multiplies and subtracts, which a compiler may contract to one operation with another rounding.
    Masking bits is exact.
    """
    words, keep = (np.uint32, 12) if value.dtype.itemsize == 4 else (np.uint64, 27)
    mask = np.asarray(~((1 << keep) - 1) & np.iinfo(words).max, words)
    upper = lax.bitcast_convert_type(lax.bitcast_convert_type(value, words) & mask, value.dtype)
    return upper, value - upper


# --- counts ----------------------------------------------------------------------------------------------------------


def count_of(number: int | UInt32[Array, ""]) -> UInt32[Array, "2"]:
    """Converts a number to a count.

    Args:
        number: a Python integer below 2**64, or an array of uint32.

    >>> count_of(2**32 + 5).tolist()
    [1, 5]
    """
    if isinstance(number, int):
        return jnp.array([number >> 32, number & 0xFFFFFFFF], jnp.uint32)
    return jnp.stack([jnp.zeros_like(number), number])


def add_counts(a: UInt32[Array, "2"], b: UInt32[Array, "2"]) -> UInt32[Array, "2"]:
    """Adds two counts.

    >>> add_counts(count_of(2**32 - 1), count_of(3)).tolist()
    [1, 2]
    """
    low = a[1] + b[1]
    # uint32 addition wraps, so the low word overflowed exactly if it is smaller than a summand.
    carry = (low < b[1]).astype(jnp.uint32)
    return jnp.stack([a[0] + b[0] + carry, low])


def count_as_sum(count: UInt32[Array, "2"], dtype: Any = jnp.float32) -> Float[Array, "2"]:
    """Converts a count to a pair."""
    scale = np.asarray(2.0**32, dtype)
    high, low = words_of(count, np.dtype(dtype))
    return jnp.stack(_add((high[0] * scale, low[0] * scale), (high[1], low[1])))
