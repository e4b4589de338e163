"""Paddings, axes and statistics in canonical form, under the names that programs import from flax's layer modules.

Some of these names begin with an underscore in flax; `linear` and `normalization` import them under those names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from weft.modules import ops
from weft.modules.construct import ConfigError
from weft.nnx.nn.construct import as_sizes

Axes = int | Sequence[int]


def canonicalize_padding(padding: Any, rank: int) -> str | list[tuple[int, int]]:
    """Converts a padding to the form of `jax.lax`: a name, or a pair (low, high) for each spatial axis.

    Args:
        padding: a name, an int for all axes, or an int or a pair for each axis.
        rank: the number of spatial axes.

    Raises:
        ValueError: for any other padding.

    >>> canonicalize_padding("SAME", 2), canonicalize_padding(1, 2), canonicalize_padding([1, (0, 2)], 2)
    ('SAME', [(1, 1), (1, 1)], [(1, 1), (0, 2)])
    """
    if isinstance(padding, str):
        return padding
    pads = [padding] * rank if isinstance(padding, int) else padding
    if (
        not isinstance(pads, Sequence)
        or len(pads) != rank
        or not all(isinstance(pad, int) or (isinstance(pad, tuple) and len(pad) == 2) for pad in pads)
    ):
        raise ConfigError(
            f"Invalid padding format: {padding!r}", fix=f"pass a name, an int, or {rank} ints or pairs (low, high)"
        )
    return ops.lax_padding(list(pads), [1] * rank)  # pyright: ignore[reportReturnType]


def conv_dimension_numbers(input_shape: Sequence[int]) -> lax.ConvDimensionNumbers:
    """The dimension numbers of a convolution with channels last.

    >>> conv_dimension_numbers((8, 32, 32, 3)).rhs_spec
    (3, 2, 0, 1)
    """
    return ops.channels_last(len(input_shape) - 2)


def normalize_axes(axes: Sequence[int], ndim: int) -> tuple[int, ...]:
    """Converts axes to sorted non-negative numbers.

    >>> normalize_axes((-1, 0), 3)
    (0, 2)
    """
    return tuple(sorted(axis % ndim if axis < 0 else axis for axis in axes))


def canonicalize_axes(rank: int, axes: Axes) -> tuple[int, ...]:
    """Converts an axis or several to sorted non-negative numbers without duplicates.

    >>> canonicalize_axes(3, (-1, 0, 2)), canonicalize_axes(3, -1)
    ((0, 2), (2,))
    """
    return tuple(sorted(set(ops.canonical_axes(axes, rank))))


# flax's name, under which programs import the function.
canonicalize_tuple = as_sizes


def abs_sq(x: jax.Array) -> jax.Array:
    """The square of the absolute value of each element."""
    return ops.squared(x)


def compute_stats(
    x: jax.Array,
    axes: Axes,
    dtype: Any,
    axis_name: str | None = None,
    axis_index_groups: Any = None,
    use_mean: bool = True,
    use_fast_variance: bool = True,
    mask: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Computes mean and variance over axes; see `weft.modules.ops.moments`."""
    return ops.moments(
        x,
        axes,
        dtype=dtype,
        axis_name=axis_name,
        axis_index_groups=axis_index_groups,
        use_mean=use_mean,
        use_fast_variance=use_fast_variance,
        mask=mask,
    )


def normalize(
    x: jax.Array,
    mean: jax.Array,
    var: jax.Array,
    scale: jax.Array | None,
    bias: jax.Array | None,
    reduction_axes: Axes,
    feature_axes: Axes,
    dtype: Any,
    epsilon: float,
) -> jax.Array:
    """Computes `(x - mean) / sqrt(var + epsilon) * scale + bias`; see `weft.modules.ops.normalize`."""
    options = {"axes": reduction_axes, "feature_axes": feature_axes, "epsilon": epsilon, "dtype": dtype}
    return ops.normalize(x, mean, var, scale, bias, **options)


def l2_normalize(x: jax.Array, axis: Axes | None = None, eps: float = 1e-12) -> jax.Array:
    """Scales vectors to length one; see `weft.modules.ops.unit_length`."""
    return ops.unit_length(x, axes=None if axis is None else canonicalize_axes(x.ndim, axis), epsilon=eps)
