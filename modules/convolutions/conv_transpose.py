"""Transposed convolution: the pure op `conv_transpose`, and the records `ConvTranspose`, `ConvTranspose1d` to `3d`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Unpack, cast

import jax.numpy as jnp
from jax import lax
from jax.nn import initializers
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped
from weft.core.records.kinds import Buffer
from weft.core.records.module import static
from weft.modules.construct import (
    Initializer,
    KeyLike,
    SharedConstructor,
    check_features,
    check_positive,
    check_single,
    option_dtype,
    per_axis,
)
from weft.modules.convolutions.windows import (
    Padding,
    WindowOptions,
    as_sizes,
    biased,
    kernel_mask,
    lax_padding,
    masked,
    one_batch_axis,
    window_of,
)
from weft.modules.dense.linear import default_kernel_init
from weft.modules.drawing import draw
from weft.modules.dtypes import promote
from weft.modules.op import kept_options, op


@op
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
    x, batch = one_batch_axis(x, rank)
    steps = per_axis(strides, rank, "strides")
    # XLA has no circular padding for a transposed convolution. So the full output is computed, and its ends are added
    # to the other side.
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
    return biased(y, bias, batch)


def _wrapped(y: Array, periods: Sequence[int], transpose_kernel: bool) -> Array:
    """Sums values that are a period apart on each spatial axis, which makes the output periodic."""
    # Filled up to an odd number of periods, so that the middle one keeps its place.
    missing = [-(size - period) % (2 * period) for size, period in zip(y.shape[1:-1], periods, strict=True)]
    # An odd amount of padding goes to the right for a transposed kernel, as circular padding does in `conv`, and to the
    # left otherwise.
    before = [rest // 2 if transpose_kernel else (rest + 1) // 2 for rest in missing]
    y = jnp.pad(y, [(0, 0), *((low, rest - low) for low, rest in zip(before, missing, strict=True)), (0, 0)])
    for axis, period in enumerate(periods, 1):
        y = jnp.sum(jnp.reshape(y, (*y.shape[:axis], -1, period, *y.shape[axis + 1 :])), axis)
    return y


class ConvTranspose(SharedConstructor):
    """A transposed convolution, channels last, over as many spatial axes as `kernel_size` has numbers.

    Args:
        in_features: size of the last axis of the input.
        out_features: size of the last axis of the output.
        kernel_size: size of the window on each spatial axis; `ConvTranspose1d`, `ConvTranspose2d` and
            `ConvTranspose3d` take one number too.
        strides: how much each spatial axis grows.
        padding: "SAME", "VALID", "CIRCULAR", or numbers as in `conv`, which go around the stretched input.
        kernel_dilation: spacing between kernel elements.
        transpose_kernel: whether to flip the window and swap the features, as the gradient of a convolution does.
        key: a typed key, for the parameters.
        use_bias: whether to add a bias.
        mask: as in `Conv`.
        kernel_init, bias_init: initialisers from `jax.nn.initializers`.
        dtype: the dtype to compute in; by default what input and parameters promote to.
        param_dtype: the dtype of the parameters.
        out_dtype: the dtype to accumulate and return.
        precision: see `jax.lax.Precision`.

    Raises:
        ConfigError: if `kernel_size` is one number, or options do not fit the spatial axes.

    >>> import jax
    >>> layer = ConvTranspose(3, 4, (2, 2), strides=2, key=jax.random.key(0))
    >>> layer(jnp.ones((5, 8, 8, 3))).shape, layer(jnp.ones((8, 8, 3))).shape
    ((5, 16, 16, 4), (16, 16, 4))
    """

    # With `transpose_kernel` the order of the last two axes is output features, input features.
    kernel: Float[Array, "*window features other_features"]
    bias: Float[Array, "{self.out_features}"] | None
    mask: Annotated[Shaped[Array, "*window features other_features"] | None, Buffer]
    in_features: int = static()
    out_features: int = static()
    strides: tuple[int, ...] = static()
    padding: Any = static()
    kernel_dilation: tuple[int, ...] = static()
    transpose_kernel: bool = static()
    dtype: Any = static()
    out_dtype: Any = static()
    precision: Any = static()

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: Sequence[int],
        *,
        key: KeyLike,
        strides: int | Sequence[int] = 1,
        padding: Padding = "SAME",
        kernel_dilation: int | Sequence[int] = 1,
        transpose_kernel: bool = False,
        use_bias: bool = True,
        mask: ArrayLike | None = None,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = initializers.zeros,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        out_dtype: Any = None,
        precision: Any = None,
    ):
        layer = type(self).__name__
        window = window_of(layer, kernel_size)
        check_positive(layer, in_features=in_features, out_features=out_features, kernel_size=min(window, default=1))
        self.strides = per_axis(strides, len(window), "strides")
        self.kernel_dilation = per_axis(kernel_dilation, len(window), "kernel_dilation")
        pads = lax_padding(padding, window, ("SAME", "VALID", "CIRCULAR"), " of a transposed convolution")
        self.padding = pads if isinstance(pads, str) else tuple(pads)
        self.in_features, self.out_features = in_features, out_features
        features = (out_features, in_features) if transpose_kernel else (in_features, out_features)
        bias = (bias_init, (out_features,), param_dtype) if use_bias else None
        self.kernel, self.bias = draw(key, layer, (kernel_init, (*window, *features), param_dtype), bias)
        self.mask = kernel_mask(layer, mask, self.kernel)
        self.transpose_kernel, self.dtype = transpose_kernel, option_dtype(dtype)
        self.out_dtype, self.precision = option_dtype(out_dtype), precision

    def __call__(
        self, x: Float[Array, "*batch_space {self.in_features}"]
    ) -> Float[Array, "*batch_out_space {self.out_features}"]:
        """Convolves the spatial axes; leading batch axes, any number of them or none, are kept.

        Raises:
            AxisError: if the last axis is not of size `in_features`, or there are too few axes; or if this is a stack.
        """
        check_single(self, self.kernel, len(self.strides) + 2)
        check_features(self, x, self.in_features)
        return conv_transpose(x, masked(self.kernel, self.mask), self.bias, **kept_options(self, conv_transpose))


class ConvTransposeOptions(WindowOptions, total=False):
    """The options of a `ConvTranspose`."""

    transpose_kernel: bool


class ConvTransposeOfRank(ConvTranspose):
    """Base of `ConvTranspose1d` to `ConvTranspose3d`; the class attribute `rank` is the number of spatial axes."""

    rank: ClassVar[int] = 1

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        *,
        key: KeyLike,
        **options: Unpack[ConvTransposeOptions],
    ):
        window = per_axis(as_sizes(kernel_size), self.rank, f"{type(self).__name__}: kernel_size")
        super().__init__(in_features, out_features, window, key=key, **options)


class ConvTranspose1d(ConvTransposeOfRank, init=False):
    """A `ConvTranspose` over one spatial axis, such as time: `(*batch, time, features)`.

    Args:
        kernel_size: one number, or one for each spatial axis.
        others: as in `ConvTranspose`.

    Raises:
        ConfigError: as in `ConvTranspose`.
        SeedError: without a typed key.

    >>> import jax
    >>> ConvTranspose1d(3, 4, 2, strides=2, key=jax.random.key(0))(jnp.ones((2, 10, 3))).shape
    (2, 20, 4)
    """

    rank = 1


class ConvTranspose2d(ConvTransposeOfRank, init=False):
    """A `ConvTranspose` over two spatial axes: images: `(*batch, height, width, features)`.

    Args:
        kernel_size: one number, or one for each spatial axis.
        others: as in `ConvTranspose`.

    Raises:
        ConfigError: as in `ConvTranspose`.
        SeedError: without a typed key.

    >>> import jax
    >>> ConvTranspose2d(3, 4, 2, strides=2, key=jax.random.key(0))(jnp.ones((2, 5, 5, 3))).shape
    (2, 10, 10, 4)
    """

    rank = 2


class ConvTranspose3d(ConvTransposeOfRank, init=False):
    """A `ConvTranspose` over three spatial axes: volumes or videos: `(*batch, depth, height, width, features)`.

    Args:
        kernel_size: one number, or one for each spatial axis.
        others: as in `ConvTranspose`.

    Raises:
        ConfigError: as in `ConvTranspose`.
        SeedError: without a typed key.

    >>> import jax
    >>> ConvTranspose3d(3, 4, 2, strides=2, key=jax.random.key(0))(jnp.ones((2, 2, 3, 3, 3))).shape
    (2, 4, 6, 6, 4)
    """

    rank = 3
