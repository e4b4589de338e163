"""Functions that break their contract only where sizes meet, and beside each its right twin.

A name that ends in `_wrong` is wrong at some sizes and right at all others: where two are one, at multiples, beyond a
threshold, at those of a table. `_right` asks the same question and is right whatever the answer.
"""

from __future__ import annotations

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

N = Float[Array, "n"]
M = Float[Array, "m"]
NM = Float[Array, "n m"]


# ---- two sizes that are one ----------------------------------------------------------------------------------------


def same_shape_wrong(x: N, y: M) -> N:
    return (x + y)[:1] if x.shape == y.shape else x


def same_shape_right(x: N, y: M) -> N:
    return x + y if x.shape == y.shape else x


def same_size_wrong(x: N, y: M) -> N:
    if x.size == y.size:
        return jnp.outer(x, y)
    return x


def same_size_right(x: N, y: M) -> N:
    if x.size == y.size:
        return x * y
    return x


def square_wrong(x: NM) -> NM:
    return x[:, :1] if x.shape[0] == x.shape[1] else x


def square_right(x: NM) -> NM:
    return x.T if x.shape[0] == x.shape[1] else x


def three_equal_wrong(x: Float[Array, "a b c"]) -> Float[Array, "a b c"]:
    a, b, c = x.shape
    return x.sum(0) if a == b == c else x


def three_equal_right(x: Float[Array, "a b c"]) -> Float[Array, "a b c"]:
    a, b, c = x.shape
    return x.transpose(2, 0, 1) if a == b == c else x


def lengths_differ_wrong(x: N, y: M) -> M:
    if len(x) != len(y):
        return y
    return y[None]


def lengths_differ_right(x: N, y: M) -> M:
    if len(x) != len(y):
        return y
    return x


def in_shape_wrong(x: N, y: Float[Array, "a b"]) -> N:
    return x[:-1] if x.shape[0] in y.shape else x


def in_shape_right(x: N, y: Float[Array, "a b"]) -> N:
    return x + 1 if x.shape[0] in y.shape else x


def one_apart_wrong(x: N, y: M) -> N:
    return x[1:] if x.shape[0] == y.shape[0] + 1 else x


def one_apart_right(x: N, y: M) -> N:
    return x.at[1:].add(y) if x.shape[0] == y.shape[0] + 1 else x


def max_of_sizes_wrong(x: N, y: M) -> N:
    return x[: max(x.shape[0] - y.shape[0], 1)] if x.shape[0] - y.shape[0] == 3 else x


def max_of_sizes_right(x: N, y: M) -> N:
    return -x if x.shape[0] - y.shape[0] == 3 else x


def set_of_shapes_wrong(x: N, y: M, z: Float[Array, "k"]) -> N:
    return x[:1] if len({x.shape, y.shape, z.shape}) == 1 else x


def set_of_shapes_right(x: N, y: M, z: Float[Array, "k"]) -> N:
    return x if len({x.shape, y.shape, z.shape}) == 1 else 2 * x


# ---- products and sums ---------------------------------------------------------------------------------------------


def twice_wrong(x: N, y: M) -> N:
    return x[:1] if x.shape[0] == 2 * y.shape[0] else x


def twice_right(x: N, y: M) -> N:
    return x + jnp.tile(y, 2) if x.shape[0] == 2 * y.shape[0] else x


def sum_of_two_wrong(x: N, a: Float[Array, "a"], b: Float[Array, "b"]) -> N:
    if x.shape[0] == a.shape[0] + b.shape[0]:
        return a
    return x


def sum_of_two_right(x: N, a: Float[Array, "a"], b: Float[Array, "b"]) -> N:
    if x.shape[0] == a.shape[0] + b.shape[0]:
        return jnp.concatenate([a, b])
    return x


def product_of_two_wrong(x: N, y: Float[Array, "a b"]) -> N:
    return y if y.size == x.size else x


def product_of_two_right(x: N, y: Float[Array, "a b"]) -> N:
    return y.reshape(-1) if y.size == x.size else x


def squared_wrong(x: N, y: M) -> N:
    return x[:-1] if x.shape[0] == y.shape[0] ** 2 else x


def squared_right(x: N, y: M) -> N:
    return x + jnp.outer(y, y).ravel() if x.shape[0] == y.shape[0] ** 2 else x


def volume_wrong(x: Float[Array, "a b c"]) -> Float[Array, "a b c"]:
    return x.reshape(-1) if math.prod(x.shape) == 64 else x


def volume_right(x: Float[Array, "a b c"]) -> Float[Array, "a b c"]:
    return x.reshape(-1).reshape(x.shape) if math.prod(x.shape) == 64 else x


def affine_wrong(x: N, y: M) -> N:
    return x[1:] if x.shape[0] == 3 * y.shape[0] - 4 else x


def affine_right(x: N, y: M) -> N:
    return x[::-1] if x.shape[0] == 3 * y.shape[0] - 4 else x


def pairs_wrong(x: N, y: M) -> N:
    k = y.shape[0]
    return x[:1] if x.shape[0] == k * (k - 1) // 2 else x


def pairs_right(x: N, y: M) -> N:
    k = y.shape[0]
    return x + y[jnp.triu_indices(k, 1)[0]] if x.shape[0] == k * (k - 1) // 2 else x


# ---- remainders ----------------------------------------------------------------------------------------------------


def ninth_wrong(x: N) -> N:
    return x[:1] if _is_ninth(x.shape[0]) else x


def ninth_right(x: N) -> N:
    return x + 1 if _is_ninth(x.shape[0]) else x


def _is_ninth(n):
    return n % 9 == 0


def late_remainder_wrong(x: N) -> N:
    n = x.shape[0]
    return x[:1] if n % 10 == 7 and n > 20 else x


def late_remainder_right(x: N) -> N:
    n = x.shape[0]
    return -x if n % 10 == 7 and n > 20 else x


def all_but_some_wrong(x: N) -> N:
    n = x.shape[0]
    return x[:1] if n % 10 == 7 and n != 7 and n != 17 else x


def all_but_some_right(x: N) -> N:
    n = x.shape[0]
    return 2 * x if n % 10 == 7 and n != 7 and n != 17 else x


def odd_wrong(x: N) -> N:
    half = x.shape[0] // 2
    return jnp.concatenate([x[:half], x[half : 2 * half]])


def odd_right(x: N) -> N:
    half = x.shape[0] // 2
    return jnp.concatenate([x[:half], x[half:]])


def blocks_wrong(x: N, y: M) -> N:
    blocks = -(x.shape[0] // -y.shape[0])  # rounded up
    return x[:1] if blocks > 3 else x


def blocks_right(x: N, y: M) -> N:
    blocks = -(x.shape[0] // -y.shape[0])
    return x - 1 if blocks > 3 else x


def even_wrong(x: N) -> N:
    return x if x.shape[0] & 1 else x[:1]


def even_right(x: N) -> N:
    return x if x.shape[0] & 1 else x * x


def divides_wrong(x: N, y: M) -> N:
    if x.shape[0] % y.shape[0] == 0:
        return x.reshape(-1, y.shape[0])[0]
    return x


def divides_right(x: N, y: M) -> N:
    if x.shape[0] % y.shape[0] == 0:
        return (x.reshape(-1, y.shape[0]) * y).reshape(-1)
    return x


def divmod_wrong(x: N) -> N:
    whole, rest = divmod(x.shape[0], 6)
    return x if rest else x[:whole]


def divmod_right(x: N) -> N:
    whole, rest = divmod(x.shape[0], 6)
    return x if rest else x.reshape(whole, 6).ravel()


def padded_wrong(x: N) -> N:
    pad = -x.shape[0] % 8
    return jnp.pad(x, (0, pad))[: x.shape[0]] if pad else x[None]


def padded_right(x: N) -> N:
    pad = -x.shape[0] % 8
    return jnp.pad(x, (0, pad))[: x.shape[0]] if pad else x


def nested_remainder_wrong(x: N) -> N:
    return x[:1] if (x.shape[0] // 3) % 5 == 4 else x


def nested_remainder_right(x: N) -> N:
    return x - 1 if (x.shape[0] // 3) % 5 == 4 else x


def remainders_differ_wrong(x: N, y: M) -> N:
    return x if x.shape[0] % 3 != y.shape[0] % 3 else x[:1]


def remainders_differ_right(x: N, y: M) -> N:
    return x if x.shape[0] % 3 != y.shape[0] % 3 else x * 3


def sum_is_even_wrong(x: N, y: M) -> N:
    return x[1:] if (x.shape[0] + y.shape[0]) % 2 else x


def sum_is_even_right(x: N, y: M) -> N:
    return x + 1 if (x.shape[0] + y.shape[0]) % 2 else x


def gcd_wrong(x: N, y: M) -> N:
    return x[:1] if math.gcd(x.shape[0], y.shape[0]) > 1 else x


def gcd_right(x: N, y: M) -> N:
    return x + 1 if math.gcd(x.shape[0], y.shape[0]) > 1 else x


# ---- thresholds ----------------------------------------------------------------------------------------------------


def large_batch_wrong(x: NM) -> NM:
    return x[:100] if x.shape[0] > 100 else x


def large_batch_right(x: NM) -> NM:
    return jnp.concatenate([x[:100], x[100:]]) if x.shape[0] > 100 else x


def far_threshold_wrong(x: N) -> N:
    return x[:4096] if x.shape[0] >= 5000 else x


def far_threshold_right(x: N) -> N:
    return x[:4096].sum() + x if x.shape[0] >= 5000 else x


def one_wrong(x: NM) -> NM:
    return x[0] if x.shape[0] == 1 else x


def one_right(x: NM) -> NM:
    return x[0][None] if x.shape[0] == 1 else x


def squeezed_wrong(x: Float[Array, "n m"]) -> N:
    return x.mean(1, keepdims=True).squeeze()


def squeezed_right(x: Float[Array, "n m"]) -> N:
    return x.mean(1, keepdims=True).squeeze(1)


def taller_wrong(x: NM) -> NM:
    return x.T if x.shape[0] > x.shape[1] else x


def taller_right(x: NM) -> NM:
    return x.T.T if x.shape[0] > x.shape[1] else x


def limited_wrong(x: N, limit: int) -> Float[Array, "limit"]:
    return x[:limit]


def limited_right(x: N, limit: int) -> Float[Array, "min(n,limit)"]:
    return x[:limit]


def clamped_wrong(x: N) -> N:
    return x[: min(x.shape[0], 512)]


def clamped_right(x: N) -> N:
    return jnp.concatenate([x[: min(x.shape[0], 512)], x[min(x.shape[0], 512) :]])


def window_wrong(x: N) -> N:
    window = 16 if x.shape[0] > 64 else 1
    return x[: x.shape[0] // window * window]


def window_right(x: N) -> N:
    window = 16 if x.shape[0] > 64 else 1
    return jnp.concatenate([x[: x.shape[0] // window * window], x[x.shape[0] // window * window :]])


def between_wrong(x: N) -> N:
    return x[:20] if 20 < x.shape[0] < 30 else x


def between_right(x: N) -> N:
    return x + 20 if 20 < x.shape[0] < 30 else x


def much_longer_wrong(x: N, y: M) -> N:
    return x[: y.shape[0]] if x.shape[0] > 10 * y.shape[0] else x


def much_longer_right(x: N, y: M) -> N:
    return x + y[0] if x.shape[0] > 10 * y.shape[0] else x


def two_thresholds_wrong(x: N, y: M) -> N:
    return x[:1] if x.shape[0] + y.shape[0] > 50 and x.shape[0] > y.shape[0] else x


def two_thresholds_right(x: N, y: M) -> N:
    return x * y.sum() if x.shape[0] + y.shape[0] > 50 and x.shape[0] > y.shape[0] else x


def area_wrong(x: NM) -> NM:
    return x[:, :10] if x.size > 1000 else x


def area_right(x: NM) -> NM:
    return x / 2 if x.size > 1000 else x


# ---- computed as floats --------------------------------------------------------------------------------------------


def root_wrong(x: N) -> N:
    return x[:1] if math.sqrt(x.shape[0]) > 7.5 else x


def root_right(x: N) -> N:
    return x / math.sqrt(x.shape[0]) if math.sqrt(x.shape[0]) > 7.5 else x


def whole_root_wrong(x: N) -> N:
    side = int(math.sqrt(x.shape[0]))
    return x.reshape(side, side) if side * side == x.shape[0] else x


def whole_root_right(x: N) -> N:
    side = int(math.sqrt(x.shape[0]))
    return x.reshape(side, side).ravel() if side * side == x.shape[0] else x


def ratio_wrong(x: NM) -> NM:
    return x[:-1] if x.shape[0] / x.shape[1] > 1.5 else x


def ratio_right(x: NM) -> NM:
    return x[::-1] if x.shape[0] / x.shape[1] > 1.5 else x


def three_quarters_wrong(x: N) -> N:
    count = int(0.75 * x.shape[0])
    return x[:count] if count == 9 else x


def three_quarters_right(x: N) -> N:
    count = int(0.75 * x.shape[0])
    return x.at[:count].set(0) if count == 9 else x


def logarithm_wrong(x: N) -> N:
    return x[:2] if np.log2(x.shape[0]) >= 6 else x


def logarithm_right(x: N) -> N:
    return jnp.log(x) if np.log2(x.shape[0]) >= 6 else x


def halved_wrong(x: N) -> N:
    return x[:-1] if x.shape[0] / 2 == 9 else x


def halved_right(x: N) -> N:
    return x[::-1] if x.shape[0] / 2 == 9 else x


# ---- tables --------------------------------------------------------------------------------------------------------

_BLOCKS = {12: 4, 16: 8, 64: 16}
_SPECIAL = frozenset((17, 34))
_LARGE = [48, 96]


def table_wrong(x: N) -> N:
    return x[: _BLOCKS[x.shape[0]]] if x.shape[0] in _BLOCKS else x


def table_right(x: N) -> N:
    return x * _BLOCKS[x.shape[0]] if x.shape[0] in _BLOCKS else x


def set_of_sizes_wrong(x: N) -> N:
    return x[:1] if x.shape[0] in _SPECIAL else x


def set_of_sizes_right(x: N) -> N:
    return x + 1 if x.shape[0] in _SPECIAL else x


def list_of_sizes_wrong(x: N) -> N:
    return x[:1] if x.shape[0] in _LARGE else x


def list_of_sizes_right(x: N) -> N:
    return x + 1 if x.shape[0] in _LARGE else x


def get_wrong(x: N) -> N:
    return x[: _BLOCKS.get(x.shape[0], x.shape[0])]


def get_right(x: N) -> N:
    return x * _BLOCKS.get(x.shape[0], 1)


@functools.cache
def _block(n):
    return 3 if n == 21 else 1


def cached_wrong(x: N) -> N:
    return x[:: _block(x.shape[0])]


def cached_right(x: N) -> N:
    return x * _block(x.shape[0])


def named_wrong(x: N) -> N:
    return x[1:] if f"{x.shape[0]}" == "33" else x


def named_right(x: N) -> N:
    return x + 1 if f"{x.shape[0]}" == "33" else x


def printed_wrong(x: N) -> N:
    return x[:1] if f"{x.shape}" == "(18,)" else x


def printed_right(x: N) -> N:
    return x + 1 if f"{x.shape}" == "(18,)" else x


def ranged_wrong(x: N) -> N:
    return x[:1] if np.arange(x.shape[0]).sum() == 153 else x


def ranged_right(x: N) -> N:
    return x + 1 if np.arange(x.shape[0]).sum() == 153 else x


def near_wrong(x: N) -> N:
    return x[:1] if math.isclose(x.shape[0] / 4, 4.5) else x


def near_right(x: N) -> N:
    return x + 1 if math.isclose(x.shape[0] / 4, 4.5) else x


def matched_wrong(x: NM) -> NM:
    match x.shape:
        case (8, _):
            return x[:4]
        case (_, 8):
            return x[:, :4]
        case _:
            return x


def matched_right(x: NM) -> NM:
    match x.shape:
        case (8, _):
            return x.at[:4].set(0)
        case (_, 8):
            return x.at[:, :4].set(0)
        case _:
            return x


# ---- several questions, and behind calls ---------------------------------------------------------------------------


def both_one_wrong(x: NM) -> NM:
    return x[0] if (x.shape[0] == 1) & (x.shape[1] == 1) else x


def both_one_right(x: NM) -> NM:
    return x + 1 if (x.shape[0] == 1) & (x.shape[1] == 1) else x


def flags_wrong(x: NM) -> NM:
    small, wide = x.shape[0] < 4, x.shape[1] > 40
    return x.T if small and wide else x


def flags_right(x: NM) -> NM:
    small, wide = x.shape[0] < 4, x.shape[1] > 40
    return x - 1 if small and wide else x


def jitted_wrong(x: N, y: M) -> N:
    @jax.jit
    def inner(x, y):
        return x[:1] if x.shape == y.shape else x

    return inner(x, y)


def jitted_right(x: N, y: M) -> N:
    @jax.jit
    def inner(x, y):
        return x + y if x.shape == y.shape else x

    return inner(x, y)


def mapped_wrong(x: NM) -> NM:
    return jax.vmap(lambda row: row[:1] if row.shape[0] == 24 else row)(x)


def mapped_right(x: NM) -> NM:
    return jax.vmap(lambda row: -row if row.shape[0] == 24 else row)(x)


def scanned_wrong(x: NM) -> NM:
    def step(carry, row):
        return carry, row.sum() if row.shape[0] % 7 == 0 else row

    return jax.lax.scan(step, 0, x)[1]


def scanned_right(x: NM) -> NM:
    def step(carry, row):
        return carry, row.sum() + row if row.shape[0] % 7 == 0 else row

    return jax.lax.scan(step, 0, x)[1]


def broadcast_wrong(x: N, y: M) -> N:
    try:
        return jnp.broadcast_shapes(x.shape, y.shape) and (x + y)[None]
    except ValueError:
        return x


def broadcast_right(x: N, y: M) -> Float[Array, "..."]:
    try:
        return jnp.broadcast_shapes(x.shape, y.shape) and (x + y)[None]
    except ValueError:
        return x


class Norm_wrong(eqx.Module):
    scale: Float[Array, "d"]

    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b d"]:
        return x[:, :1] if x.shape[0] == self.scale.shape[0] else x * self.scale


class Norm_right(eqx.Module):
    scale: Float[Array, "d"]

    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b d"]:
        return x if x.shape[0] == self.scale.shape[0] else x * self.scale


class Heads_wrong(eqx.Module):
    weight: Float[Array, "d d"]
    heads: int = eqx.field(static=True)

    def __call__(self, x: Float[Array, "t d"]) -> Float[Array, "t d"]:
        if x.shape[1] % self.heads:
            return x
        return x.reshape(x.shape[0], self.heads, -1).sum(1)


class Heads_right(eqx.Module):
    weight: Float[Array, "d d"]
    heads: int = eqx.field(static=True)

    def __call__(self, x: Float[Array, "t d"]) -> Float[Array, "t d"]:
        if x.shape[1] % self.heads:
            return x
        return x.reshape(x.shape[0], self.heads, -1).reshape(x.shape)


# ---- asked before an option is looked at: without the option, either answer is right -------------------------------


def square_and_option_wrong(x: NM, *, first: bool = False) -> NM:
    is_square = x.shape[0] == x.shape[1]
    return x[:, :1] if first and is_square else x


def square_and_option_right(x: NM, *, first: bool = False) -> NM:
    is_square = x.shape[0] == x.shape[1]
    return x.T if first and is_square else x


def square_and_bias_wrong(x: NM, bias: M | None = None) -> NM:
    is_square = x.shape[0] == x.shape[1]
    if bias is None:
        return x
    return (x + bias)[:, :1] if is_square else x + bias


def square_and_bias_right(x: NM, bias: M | None = None) -> NM:
    is_square = x.shape[0] == x.shape[1]
    if bias is None:
        return x
    return (x + bias).T if is_square else x + bias


def sliced_and_option_wrong(x: N, *, zeros: bool = False) -> N:
    head = x[:4]  # NumPy's slice asks whether n is less than 4
    return jnp.zeros(head.shape[0] + x.shape[0] - 4) if zeros else x


def sliced_and_option_right(x: N, *, zeros: bool = False) -> N:
    head = x[:4]
    return jnp.zeros(head.shape[0] + x[4:].shape[0]) if zeros else x


def square_in_a_scan_wrong(x: NM, *, first: bool = False) -> NM:
    is_square = x.shape[0] == x.shape[1]
    return jax.lax.scan(lambda carry, row: (carry, row[:1] if first and is_square else row), 0.0, x)[1]


def square_in_a_scan_right(x: NM, *, first: bool = False) -> NM:
    is_square = x.shape[0] == x.shape[1]
    return jax.lax.scan(lambda carry, row: (carry, row[::-1] if first and is_square else row), 0.0, x)[1]
