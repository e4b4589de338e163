"""Pooling over spatial axes, channels last: the pure ops of `weft.modules`, with NNX's names of arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from weft import modules
from weft.modules import ops


def pool(
    inputs: jax.Array,
    init: Any,
    reduce_fn: Callable[..., Any],
    window_shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: Any,
) -> jax.Array:
    """Reduces windows of the spatial axes.

    Args:
        inputs: `(*batch, *spatial, features)`.
        init: the reduction's neutral element.
        reduce_fn: the reduction, such as `jax.lax.max`.
        window_shape: size of the window on each spatial axis; its length is the number of spatial axes.
        strides: step of the window on each spatial axis; 1 by default.
        padding: "SAME", "VALID", or a pair (low, high) for each spatial axis.

    Raises:
        ValueError: if `inputs` has too few axes, or the options are for another number of axes.

    >>> import jax.numpy as jnp
    >>> pool(jnp.arange(4.0)[None, :, None], 0.0, jax.lax.add, (2,), (2,), "VALID").ravel().tolist()
    [1.0, 5.0]
    """
    return ops.pool(inputs, init, reduce_fn, window_shape, strides, padding)


def max_pool(
    inputs: jax.Array, window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Any = "VALID"
) -> jax.Array:
    """Returns the maximum of each window; arguments as in `pool`.

    Raises:
        ValueError: if there are too few axes.

    >>> import jax.numpy as jnp
    >>> max_pool(jnp.arange(4.0)[None, :, None], (2,), strides=(2,)).ravel().tolist()
    [1.0, 3.0]
    """
    return modules.max_pool(inputs, window=window_shape, strides=strides, padding=padding)


def min_pool(
    inputs: jax.Array, window_shape: Sequence[int], strides: Sequence[int] | None = None, padding: Any = "VALID"
) -> jax.Array:
    """Returns the minimum of each window; arguments as in `pool`.

    Raises:
        ValueError: if there are too few axes.

    >>> import jax.numpy as jnp
    >>> min_pool(jnp.arange(4.0)[None, :, None], (2,), strides=(2,)).ravel().tolist()
    [0.0, 2.0]
    """
    return modules.min_pool(inputs, window=window_shape, strides=strides, padding=padding)


def avg_pool(
    inputs: jax.Array,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    count_include_pad: bool = True,
) -> jax.Array:
    """Returns the mean of each window; arguments as in `pool`.

    Args:
        count_include_pad: whether padding counts as zeros in the mean, or is left out.

    Raises:
        ValueError: if there are too few axes.

    >>> import jax.numpy as jnp
    >>> avg_pool(jnp.arange(4.0)[None, :, None], (2,), strides=(2,)).ravel().tolist()
    [0.5, 2.5]
    """
    return modules.avg_pool(
        inputs, window=window_shape, strides=strides, padding=padding, count_include_pad=count_include_pad
    )
