"""Pooling layers: records that hold the options of a pooling function, for use in chains of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from jaxtyping import Array, Float
from weft.core.records.module import static
from weft.modules.construct import ConfigError, SharedConstructor, check_positive, per_axis
from weft.modules.convolutions.pooling import adaptive_avg_pool, adaptive_max_pool, avg_pool, max_pool, min_pool
from weft.modules.op import kept_options


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
        self.padding = padding if isinstance(padding, str | int) else tuple(map(_pair, padding))


class MaxPool(Pool, init=False):
    """The largest value of each window; arguments as in `Pool`, and the function is `max_pool`.

    Raises:
        AxisError: when called, as `max_pool`.
        ConfigError: as in `AvgPool`.

    >>> import jax.numpy as jnp
    >>> MaxPool((2,))(jnp.arange(4.0)[:, None]).ravel().tolist()
    [1.0, 3.0]
    """

    _pool = staticmethod(max_pool)


class MinPool(Pool, init=False):
    """The smallest value of each window; arguments as in `Pool`, and the function is `min_pool`.

    Raises:
        AxisError: when called, as `min_pool`.
        ConfigError: as in `AvgPool`.

    >>> import jax.numpy as jnp
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

    >>> import jax.numpy as jnp
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

    >>> import jax.numpy as jnp
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

    >>> import jax.numpy as jnp
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


def _pair(pad: Any) -> Any:
    return pad if isinstance(pad, int) else tuple(pad)
