"""Pooling over spatial axes, channels last: the ops, and the records that hold their options, for chains of layers.

Over a window: `max_pool` and `MaxPool`, `min_pool` and `MinPool`, `avg_pool` and `AvgPool`. To a size:
`adaptive_avg_pool` and `AdaptiveAvgPool`, `adaptive_max_pool` and `AdaptiveMaxPool`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from weft.core.errors import AxisError
from weft.core.records.module import static
from weft.modules.construct import ConfigError, SharedConstructor, check_positive, check_space, per_axis
from weft.modules.convolutions.windows import lax_padding
from weft.modules.dtypes import as_array
from weft.modules.op import hashable, kept_options, op


def pool(
    x: Float[Array, "*batch_space features"],
    init: float,
    reduce: Callable[[Any, Any], Any],
    window: Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: Any = "VALID",
) -> Float[Array, "*batch_out_space features"]:
    """Reduces windows over the spatial axes; `window` has one size for each of them.

    Args:
        x: any leading batch axes (or none), spatial axes, features.
        init: the reduction's neutral element.
        reduce: the reduction, such as `jax.lax.max`.
        window: size of the window on each spatial axis.
        strides: step of the window, for all axes or each; one by default.
        padding: "SAME", "VALID", or numbers as in `conv`.

    Raises:
        AxisError: if there are fewer axes than the window's and one of features.

    >>> pool(jnp.arange(4.0)[:, None], 0.0, lax.add, (2,), strides=2).ravel().tolist()
    [1.0, 5.0]
    """
    x, window = as_array(x), tuple(window)
    rank = len(window)
    check_space(x, rank)
    batch = x.ndim - rank - 1
    pads = lax_padding(padding, window, ("SAME", "VALID", "SAME_LOWER", "CAUSAL"), " of a pooling")
    steps = per_axis(1 if strides is None else strides, rank, "strides")
    return lax.reduce_window(
        x,
        # JAX recognises max and sum with their neutral elements, and has derivatives for these only: the element is a
        # constant of the array's dtype, and no traced value.
        np.asarray(init, x.dtype),
        reduce,
        (1,) * batch + window + (1,),
        (1,) * batch + steps + (1,),
        pads if isinstance(pads, str) else [(0, 0)] * batch + pads + [(0, 0)],
    )


@op("window", "strides", "padding")
def max_pool(
    x: Float[Array, "*batch_space features"],
    window: Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: Any = "VALID",
) -> Float[Array, "*batch_out_space features"]:
    """Returns the largest value of each window; arguments as in `pool`.

    Raises:
        AxisError: if there are fewer axes than the window's and one of features.

    >>> max_pool(jnp.arange(4.0)[:, None], (2,), strides=2).ravel().tolist()
    [1.0, 3.0]
    """
    x = as_array(x)
    lowest = -np.inf if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.iinfo(x.dtype).min
    return pool(x, lowest, lax.max, window, strides, padding)


@op("window", "strides", "padding")
def min_pool(
    x: Float[Array, "*batch_space features"],
    window: Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: Any = "VALID",
) -> Float[Array, "*batch_out_space features"]:
    """Returns the smallest value of each window; arguments as in `pool`.

    Raises:
        AxisError: if there are fewer axes than the window's and one of features.

    >>> min_pool(jnp.arange(4.0)[:, None], (2,), strides=2).ravel().tolist()
    [0.0, 2.0]
    """
    x = as_array(x)
    highest = np.inf if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.iinfo(x.dtype).max
    return pool(x, highest, lax.min, window, strides, padding)


@op("window", "strides", "padding", "count_include_pad")
def avg_pool(
    x: Float[Array, "*batch_space features"],
    window: Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: Any = "VALID",
    count_include_pad: bool = True,
) -> Float[Array, "*batch_out_space features"]:
    """Returns the mean of each window; arguments as in `pool`.

    Args:
        count_include_pad: whether padding counts as zeros, or not at all.

    Raises:
        AxisError: if there are fewer axes than the window's and one of features.

    >>> avg_pool(jnp.arange(4.0)[:, None], (2,), strides=2).ravel().tolist()
    [0.5, 2.5]
    """
    x = as_array(x)
    total = pool(x, 0, lax.add, window, strides, padding)
    if count_include_pad:
        return total / math.prod(window)
    # One example with one feature is enough to count the elements of each window.
    ones = jnp.ones((*(1,) * (x.ndim - len(window) - 1), *x.shape[-len(window) - 1 : -1], 1), total.dtype)
    return total / pool(ones, 0, lax.add, window, strides, padding)


def _pool_to(x: Any, sizes: Sequence[int], reduce: Callable[..., Any], name: str) -> Any:
    x, rank = as_array(x), len(sizes)
    check_space(x, rank)
    for axis, size in enumerate(sizes, x.ndim - rank - 1):
        extent = x.shape[axis]
        if size < 1:
            raise ConfigError(f"{name}: sizes must be positive, not {tuple(sizes)}")
        if extent < 1:
            raise AxisError(f"{name} has nothing to pool on an axis of size 0", at=f"x: {jax.typeof(x)}")
        # As in PyTorch: if the sizes do not divide, neighbouring bins overlap, and no bin is empty.
        bounds = [(index * extent // size, -(-(index + 1) * extent // size)) for index in range(size)]
        bins = [lax.slice_in_dim(x, low, high, axis=axis) for low, high in bounds]
        x = jnp.concatenate([reduce(values, axis, keepdims=True) for values in bins], axis)
    return x


@op("sizes")
def adaptive_avg_pool(
    x: Float[Array, "*batch_space features"], sizes: Sequence[int]
) -> Float[Array, "*batch_out_space features"]:
    """Returns the means of a fixed number of bins, for inputs of any size.

    Bin `i` of `m` goes from `floor(i n / m)` to `ceil((i + 1) n / m)` on an axis of size `n`, as in PyTorch.

    Args:
        x: any leading batch axes (or none), spatial axes, features.
        sizes: the output's size on each spatial axis: `(1, 1)` is global pooling of images.

    Raises:
        ConfigError: if a size is not positive.
        AxisError: if there are fewer axes than sizes and one of features, or nothing to pool.

    >>> adaptive_avg_pool(jnp.arange(6.0)[:, None], (3,)).ravel().tolist()
    [0.5, 2.5, 4.5]
    """
    return _pool_to(x, sizes, jnp.mean, "adaptive_avg_pool")


@op("sizes")
def adaptive_max_pool(
    x: Float[Array, "*batch_space features"], sizes: Sequence[int]
) -> Float[Array, "*batch_out_space features"]:
    """Returns the largest values of a fixed number of bins; arguments and errors as in `adaptive_avg_pool`.

    Raises:
        AxisError: if there are fewer axes than the sizes' and one of features, or nothing to pool on one.
        ConfigError: if a size is not positive.

    >>> adaptive_max_pool(jnp.arange(5.0)[:, None], (2,)).ravel().tolist()
    [2.0, 4.0]
    """
    return _pool_to(x, sizes, jnp.max, "adaptive_max_pool")


# --- layers ----------------------------------------------------------------------------------------------------------


class _Pooling(SharedConstructor):
    """Base of pooling layers, which call a pooling op with the options that they store."""

    _pool: ClassVar[Callable[..., Any]]

    def __call__(self, x: Float[Array, "*batch_space features"]) -> Float[Array, "*batch_out_space features"]:
        """Pools the spatial axes; leading batch axes are kept."""
        return self._pool(x, **kept_options(self, self._pool))


class Pool(_Pooling):
    """Base of layers that reduce a window; a subclass chooses the reduction.

    Args:
        window: size of the window on each spatial axis.
        strides: step of the window, for all axes or each; by default the window itself, so that none overlap.
        padding: as in `max_pool`.

    Raises:
        ConfigError: if a size is not positive, or options do not fit the window.
    """

    window: tuple[int, ...] = static()
    strides: tuple[int, ...] = static()
    padding: Any = static()

    def __init__(self, window: Sequence[int], *, strides: int | Sequence[int] | None = None, padding: Any = "VALID"):
        layer = type(self).__name__
        self.window = sizes_of(layer, "window", window)
        # Without overlap by default, as in PyTorch; the functions keep flax's default, a step of one.
        self.strides = per_axis(self.window if strides is None else strides, len(self.window), "strides")
        check_positive(layer, strides=min(self.strides))
        # Lists in it would have no hash.
        self.padding = padding if isinstance(padding, str | int) else hashable(tuple(padding))


class MaxPool(Pool, init=False):
    """The largest value of each window; arguments as in `Pool`, and the function is `max_pool`.

    Raises:
        AxisError: when called, as `max_pool`.
        ConfigError: as in `AvgPool`.

    >>> MaxPool((2,))(jnp.arange(4.0)[:, None]).ravel().tolist()
    [1.0, 3.0]
    """

    _pool = staticmethod(max_pool)


class MinPool(Pool, init=False):
    """The smallest value of each window; arguments as in `Pool`, and the function is `min_pool`.

    Raises:
        AxisError: when called, as `min_pool`.
        ConfigError: as in `AvgPool`.

    >>> MinPool((2,))(jnp.arange(4.0)[:, None]).ravel().tolist()
    [0.0, 2.0]
    """

    _pool = staticmethod(min_pool)


class AvgPool(Pool):
    """The mean of each window; arguments as in `Pool`, and the function is `avg_pool`.

    Args:
        count_include_pad: whether padding counts as zeros, or not at all.

    Raises:
        AxisError: when called, as `avg_pool`.
        ConfigError: if the window is one number, has a size that is not positive, or another number of strides.

    >>> AvgPool((2,))(jnp.arange(4.0)[:, None]).ravel().tolist()
    [0.5, 2.5]
    """

    count_include_pad: bool = static()
    _pool = staticmethod(avg_pool)

    def __init__(
        self,
        window: Sequence[int],
        *,
        strides: int | Sequence[int] | None = None,
        padding: Any = "VALID",
        count_include_pad: bool = True,
    ):
        super().__init__(window, strides=strides, padding=padding)
        self.count_include_pad = count_include_pad


class _AdaptivePool(_Pooling):
    sizes: tuple[int, ...] = static()

    def __init__(self, sizes: Sequence[int]):
        self.sizes = sizes_of(type(self).__name__, "sizes", sizes)


class AdaptiveAvgPool(_AdaptivePool, init=False):
    """The means of as many bins as are asked for; the function is `adaptive_avg_pool`.

    Args:
        sizes: the output's size on each spatial axis: `(1, 1)` is global pooling of images.

    Raises:
        ConfigError: if a size is not positive.

    >>> AdaptiveAvgPool((3,))(jnp.arange(6.0)[:, None]).ravel().tolist()
    [0.5, 2.5, 4.5]
    """

    _pool = staticmethod(adaptive_avg_pool)


class AdaptiveMaxPool(_AdaptivePool, init=False):
    """The largest values of as many bins as are asked for; the function is `adaptive_max_pool`.

    Args:
        sizes: the output's size on each spatial axis.

    Raises:
        ConfigError: if a size is not positive.

    >>> AdaptiveMaxPool((2,))(jnp.arange(5.0)[:, None]).ravel().tolist()
    [2.0, 4.0]
    """

    _pool = staticmethod(adaptive_max_pool)


def sizes_of(layer: str, name: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Checks sizes of spatial axes, and returns them as a tuple.

    Raises:
        ConfigError: for one number, which does not say how many axes there are, for none, or one that is not positive.
    """
    if not isinstance(sizes, Sequence) or not sizes:
        raise ConfigError(
            f"{layer}: {name}={sizes!r} does not tell the number of spatial axes",
            fix=f"{name}=(2, 2) for images, (2,) for sequences",
        )
    check_positive(layer, **{name: min(sizes)})
    return tuple(sizes)
