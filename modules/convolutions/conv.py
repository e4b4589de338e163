"""Convolution over 1 to 3 (or more) spatial axes, channels last.

The kernel's rank tells the pure op `conv` how many spatial axes there are, and the length of `kernel_size` tells the
record `Conv`. `Conv1d`, `Conv2d` and `Conv3d` have the number in their names, so that one number gives a square window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Unpack

import jax.numpy as jnp
from jax import lax
from jax.nn import initializers
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped
from weft.core.records.kinds import Buffer
from weft.core.records.module import static
from weft.modules.construct import (
    ConfigError,
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
    PAD_MODES,
    Padding,
    WindowOptions,
    as_sizes,
    biased,
    channels_last,
    dilated,
    kernel_mask,
    lax_padding,
    masked,
    one_batch_axis,
    padded,
    window_of,
)
from weft.modules.dense.linear import default_kernel_init, product_options
from weft.modules.drawing import draw
from weft.modules.dtypes import promote
from weft.modules.op import kept_options, op


@op
def conv(
    x: Float[Array, "*batch_space {feature_group_count}*group_in"],
    kernel: Float[Array, "*window group_in out"],
    bias: Float[Array, "out"] | None = None,
    *,
    strides: int | Sequence[int] = 1,
    padding: Padding = "SAME",
    input_dilation: int | Sequence[int] = 1,
    kernel_dilation: int | Sequence[int] = 1,
    feature_group_count: int = 1,
    dtype: Any = None,
    out_dtype: Any = None,
    precision: Any = None,
    conv_general_dilated: Any = lax.conv_general_dilated,
    out_sharding: Any = None,
    promote: Any = promote,
) -> Float[Array, "*batch_out_space out"]:
    """Convolves the spatial axes; there are as many as the kernel's rank minus two.

    Args:
        x: any leading batch axes (or none), spatial axes, features.
        kernel: window, features of a group, output features.
        bias: added at the end, if given.
        strides: step of the window, for all spatial axes or each.
        padding: "SAME", "VALID", "CIRCULAR" (periodic), "REFLECT", "CAUSAL" (1-D, only to the left), or numbers: one
            for all, one an axis, or a pair (low, high) an axis.
        input_dilation: spacing put between input elements; makes a transposed convolution.
        kernel_dilation: spacing between kernel elements ("atrous").
        feature_group_count: number of groups that the features are divided into.
        dtype: the dtype to compute in.
        out_dtype: the dtype to accumulate and return.
        precision: see `jax.lax.Precision`.
        conv_general_dilated: the convolution, with the arguments of `jax.lax.conv_general_dilated`.
        out_sharding: of the convolution, in explicit-sharding mode.
        promote: as in `linear`.

    Raises:
        AxisError: if the input has too few axes.

    >>> conv(jnp.ones((8, 3)), jnp.ones((3, 3, 4)), padding="VALID").shape
    (6, 4)
    """
    x, kernel, bias = promote(x, kernel, bias, dtype=dtype)
    rank = kernel.ndim - 2
    # `lax.conv_general_dilated` takes exactly one batch axis.
    x, batch = one_batch_axis(x, rank)
    kernel_dilation = per_axis(kernel_dilation, rank, "kernel_dilation")
    x, pads = padded(x, padding, dilated(kernel.shape[:rank], kernel_dilation))
    y = conv_general_dilated(
        x,
        kernel,
        per_axis(strides, rank, "strides"),
        pads,
        lhs_dilation=per_axis(input_dilation, rank, "input_dilation"),
        rhs_dilation=kernel_dilation,
        dimension_numbers=channels_last(rank),
        feature_group_count=feature_group_count,
        precision=precision,
        **product_options(out_dtype, out_sharding),
    )
    return biased(y, bias, batch)


class Conv(SharedConstructor):
    """A convolution, channels last, over as many spatial axes as `kernel_size` has numbers.

    Args:
        in_features: size of the last axis of the input.
        out_features: size of the last axis of the output.
        kernel_size: size of the window on each spatial axis: `(3, 3)` for images. One number would not say how many
            axes there are; `Conv1d`, `Conv2d` and `Conv3d` take it.
        strides, padding, input_dilation, kernel_dilation, feature_group_count: as in `conv`.
        key: a typed key, for the parameters.
        use_bias: whether to add a bias.
        mask: of the kernel's shape; multiplies the kernel at each call, so that masked weights have no effect.
        kernel_init: initialiser from `jax.nn.initializers`.
        bias_init: likewise.
        dtype: the dtype to compute in; by default what input and parameters promote to.
        param_dtype: the dtype of the parameters.
        out_dtype: the dtype to accumulate and return.
        precision: see `jax.lax.Precision`.

    Raises:
        ConfigError: if `kernel_size` is one number, the groups do not divide the features, or options do not fit the
            spatial axes.

    >>> import jax
    >>> layer = Conv(3, 8, (3, 3), strides=2, key=jax.random.key(0))
    >>> layer(jnp.ones((5, 8, 8, 3))).shape, layer(jnp.ones((8, 8, 3))).shape
    ((5, 4, 4, 8), (4, 4, 8))
    """

    kernel: Float[Array, "*window group_in out"]
    bias: Float[Array, "out"] | None
    mask: Annotated[Shaped[Array, "*window group_in out"] | None, Buffer]
    strides: tuple[int, ...] = static()
    padding: Any = static()
    input_dilation: tuple[int, ...] = static()
    kernel_dilation: tuple[int, ...] = static()
    feature_group_count: int = static()
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
        input_dilation: int | Sequence[int] = 1,
        kernel_dilation: int | Sequence[int] = 1,
        feature_group_count: int = 1,
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
        rank, groups = len(window), feature_group_count
        check_positive(layer, in_features=in_features, out_features=out_features, feature_group_count=groups)
        if in_features % groups or out_features % groups:
            raise ConfigError(f"{layer}: groups={groups} must divide in_features={in_features} and {out_features=}")
        check_positive(layer, kernel_size=min(window, default=1))
        # Stored as tuples, so that `strides=2` and `strides=(2, 2)` give layers with equal treedefs.
        self.strides = per_axis(strides, rank, "strides")
        self.input_dilation = per_axis(input_dilation, rank, "input_dilation")
        self.kernel_dilation = per_axis(kernel_dilation, rank, "kernel_dilation")
        pads = lax_padding(padding, dilated(window, self.kernel_dilation))
        # JAX refuses a padding by name together with input dilation, but only when the layer is called.
        if isinstance(pads, str) and pads not in PAD_MODES and set(self.input_dilation) != {1}:
            raise ConfigError(f"padding {pads!r} cannot be combined with input_dilation", fix="give pairs (low, high)")
        # By name only if its amounts depend on the size of the input.
        self.padding = pads if isinstance(pads, str) else tuple(pads)
        self.feature_group_count = groups
        kernel = kernel_init, (*window, in_features // groups, out_features), param_dtype
        bias = (bias_init, (out_features,), param_dtype) if use_bias else None
        self.kernel, self.bias = draw(key, layer, kernel, bias)
        self.mask = kernel_mask(layer, mask, self.kernel)
        self.dtype, self.out_dtype, self.precision = option_dtype(dtype), option_dtype(out_dtype), precision

    def __call__(
        self, x: Float[Array, "*batch_space {self.feature_group_count}*group_in"]
    ) -> Float[Array, "*batch_out_space out"]:
        """Convolves the spatial axes; leading batch axes, any number of them or none, are kept.

        Raises:
            AxisError: if the last axis is not of size `in_features`, or there are too few axes; or if this is a stack.
        """
        # `*window` in the annotation takes any number of axes, so a stack's axis of layers would pass for one of space.
        check_single(self, self.kernel, len(self.strides) + 2)
        check_features(self, x, self.kernel.shape[-2] * self.feature_group_count)
        return conv(x, masked(self.kernel, self.mask), self.bias, **kept_options(self, conv))


class ConvOptions(WindowOptions, total=False):
    """The options of a `Conv`."""

    input_dilation: int | Sequence[int]
    feature_group_count: int


class ConvOfRank(Conv):
    """Base of `Conv1d`, `Conv2d` and `Conv3d`; the class attribute `rank` is the number of spatial axes."""

    rank: ClassVar[int] = 1

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        *,
        key: KeyLike,
        **options: Unpack[ConvOptions],
    ):
        window = per_axis(as_sizes(kernel_size), self.rank, f"{type(self).__name__}: kernel_size")
        super().__init__(in_features, out_features, window, key=key, **options)


class Conv1d(ConvOfRank, init=False):
    """A `Conv` over one spatial axis, such as time: `(*batch, time, features)`.

    Args:
        kernel_size: one number.
        others: as in `Conv`.

    Raises:
        ConfigError: as in `Conv`.
        SeedError: without a typed key.

    >>> import jax
    >>> Conv1d(3, 8, 5, padding="CAUSAL", key=jax.random.key(0))(jnp.ones((2, 10, 3))).shape
    (2, 10, 8)
    """

    rank = 1


class Conv2d(ConvOfRank, init=False):
    """A `Conv` over two spatial axes: images, `(*batch, height, width, features)`.

    Args:
        kernel_size: one number for both axes, or two.
        others: as in `Conv`.

    Raises:
        ConfigError: as in `Conv`.
        SeedError: without a typed key.

    >>> import jax
    >>> layer = Conv2d(3, 8, 3, key=jax.random.key(0))
    >>> layer.kernel.shape, layer(jnp.ones((2, 16, 16, 3))).shape
    ((3, 3, 3, 8), (2, 16, 16, 8))
    """

    rank = 2


class Conv3d(ConvOfRank, init=False):
    """A `Conv` over three spatial axes: volumes or videos, `(*batch, depth, height, width, features)`.

    Args:
        kernel_size: one number for the three axes, or three.
        others: as in `Conv`.

    Raises:
        ConfigError: as in `Conv`.
        SeedError: without a typed key.

    >>> import jax
    >>> Conv3d(1, 4, (1, 3, 3), key=jax.random.key(0))(jnp.ones((2, 4, 8, 8, 1))).shape
    (2, 4, 8, 8, 4)
    """

    rank = 3
