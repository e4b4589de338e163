"""Transposed convolution: the pure op `conv_transpose`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float
from weft.modules.construct import check_space, per_axis
from weft.modules.dense.linear import add_bias
from weft.modules.dtypes import promote
from weft.modules.op import op


@op("strides", "padding", "kernel_dilation", "transpose_kernel", "dtype", "out_dtype", "precision", "promote")
def conv_transpose(
    x: Float[Array, "*batch_space in"],
    kernel: Float[Array, "*window {('in','out')[transpose_kernel]} {('out','in')[transpose_kernel]}"],
    bias: Float[Array, "out"] | None = None,
    *,
    strides: int | Sequence[int] = 1,
    padding: str | Sequence[tuple[int, int]] = "SAME",
    kernel_dilation: int | Sequence[int] = 1,
    transpose_kernel: bool = False,
    dtype: Any = None,
    out_dtype: Any = None,
    precision: Any = None,
    promote: Any = promote,
) -> Float[Array, "*batch_out_space out"]:
    """Convolves with fractional strides, the transpose of a convolution.

    Args:
        x: any leading batch axes (or none), spatial axes, features.
        kernel: window, features, output features; the last two swapped under `transpose_kernel`.
        bias: added at the end, if given.
        strides: how much each spatial axis grows.
        padding: as in `jax.lax.conv_transpose`, or "CIRCULAR".
        kernel_dilation: spacing between kernel elements.
        transpose_kernel: whether to flip the window and swap the features, as the gradient of a convolution does.
        dtype, out_dtype, precision, promote: as in `linear`.

    Raises:
        AxisError: if the input has too few axes.

    >>> conv_transpose(jnp.ones((4, 3)), jnp.ones((2, 3, 5)), strides=2).shape
    (8, 5)
    """
    x, kernel, bias = promote(x, kernel, bias, dtype=dtype)
    rank = kernel.ndim - 2
    check_space(x, rank)
    batch = x.shape[: x.ndim - rank - 1]
    if len(batch) != 1:
        x = lax.reshape(x, (math.prod(batch), *x.shape[len(batch) :]))
    steps = per_axis(strides, rank, "strides")
    circular = padding == "CIRCULAR"
    y = lax.conv_transpose(
        x,
        kernel,
        steps,
        cast("str | Sequence[tuple[int, int]]", "VALID" if circular else padding),
        rhs_dilation=per_axis(kernel_dilation, rank, "kernel_dilation"),
        transpose_kernel=transpose_kernel,
        precision=precision,
        preferred_element_type=out_dtype,
    )
    if circular:
        y = _wrapped(y, [size * step for size, step in zip(x.shape[1:-1], steps, strict=True)], transpose_kernel)
    if bias is not None:
        y = add_bias(y, bias)
    return y if len(batch) == 1 else lax.reshape(y, (*batch, *y.shape[1:]))


def _wrapped(y: Array, periods: Sequence[int], transpose_kernel: bool) -> Array:
    """Adds up what lies a period apart on each spatial axis, so that the middle of `y` stays where it is."""
    missing = [-(size - period) % (2 * period) for size, period in zip(y.shape[1:-1], periods, strict=True)]
    # An odd rest goes to the right for a transposed kernel, as in `conv`, and to the left otherwise.
    left = [rest // 2 if transpose_kernel else (rest + 1) // 2 for rest in missing]
    y = jnp.pad(y, [(0, 0), *((low, rest - low) for low, rest in zip(left, missing, strict=True)), (0, 0)])
    for axis, period in enumerate(periods, 1):
        y = jnp.sum(jnp.reshape(y, (*y.shape[:axis], -1, period, *y.shape[axis + 1 :])), axis)
    return y
