"""Convolutions, channels last: `Conv` and `ConvTranspose`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from weft.modules import ops
from weft.modules.construct import ConfigError
from weft.nnx.nn import dtypes
from weft.nnx.nn.affine import Affine, default_bias_init, default_kernel_init, learned, product_options
from weft.nnx.nn.construct import NO_METADATA, Metadata, Sizes, as_sizes, keep_options, make_param, maybe_param
from weft.nnx.nn.features import names_features


class _Convolution(Affine):
    in_features: int
    out_features: int
    kernel_size: tuple[int, ...]
    kernel_shape: tuple[int, ...]
    strides: Sizes | None
    padding: Any
    kernel_dilation: Sizes | None
    mask: Any


def _masked(layer: Any) -> tuple[jax.Array, jax.Array | None]:
    """Returns the kernel of a layer times its mask, and the bias."""
    kernel, bias = learned(layer)
    if layer.mask is None:
        return kernel, bias
    # A mask of another shape would broadcast against the kernel, and silently mask the wrong weights.
    if jnp.shape(layer.mask) != layer.kernel_shape:
        raise ConfigError(
            "Mask needs to have the same shape as weights: "
            f"the mask of a {type(layer).__name__} must have the shape of its kernel",
            at=f"mask: {jnp.shape(layer.mask)}, kernel: {layer.kernel_shape}",
        )
    # At each call, and not once in the constructor: the first step of an optimizer would move masked weights away from
    # zero.
    return kernel * layer.mask, bias


class Conv(_Convolution):
    """A convolution; `kernel_size` has a size for each spatial axis.

    Args:
        in_features, out_features: size of the last axis, before and after.
        kernel_size: size of the window; an integer for one spatial axis.
        strides: step of the window, for all spatial axes or for each.
        padding: "SAME", "VALID", "CIRCULAR" (periodic), "REFLECT", "CAUSAL" (1-D, only to the left), an int for all
            axes, or an int or a pair (low, high) for each axis.
        input_dilation: dilation factor of the input.
        kernel_dilation: dilation factor of the kernel.
        feature_group_count: number of feature groups, each with its own kernel.
        use_bias: whether to add a bias.
        mask: an array of the kernel's shape that multiplies it.
        dtype: the dtype to compute in; by default what input and parameters promote to.
        param_dtype: the dtype of the parameters.
        precision: see `jax.lax.Precision`.
        kernel_init, bias_init: initializers.
        conv_general_dilated: a replacement for `jax.lax.conv_general_dilated`.
        promote_dtype: casts `(inputs, kernel, bias)` to one dtype, given `dtype`.
        preferred_element_type: the dtype to accumulate and return.
        rngs: a key for each parameter is drawn from the stream `params`.
        kernel_metadata, bias_metadata: metadata of the parameters.

    >>> from weft import nnx
    >>> layer = Conv(3, 8, (3, 3), strides=2, rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((5, 8, 8, 3))).shape, layer(jnp.ones((8, 8, 3))).shape
    ((5, 4, 4, 8), (4, 4, 8))
    """

    input_dilation: Sizes | None
    feature_group_count: int
    conv_general_dilated: Callable[..., Any]

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: Sizes,
        strides: Sizes | None = 1,
        *,
        padding: Any = "SAME",
        input_dilation: Sizes | None = 1,
        kernel_dilation: Sizes | None = 1,
        feature_group_count: int = 1,
        use_bias: bool = True,
        mask: jax.Array | None = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = None,
        kernel_init: Callable[..., Any] = default_kernel_init,
        bias_init: Callable[..., Any] = default_bias_init,
        conv_general_dilated: Callable[..., Any] = lax.conv_general_dilated,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        preferred_element_type: Any = None,
        rngs: Any,
        kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ):
        kernel_size = as_sizes(kernel_size)
        self.kernel_shape = (*kernel_size, in_features // feature_group_count, out_features)
        self.kernel = make_param(kernel_init, rngs, self.kernel_shape, param_dtype, kernel_metadata)
        self.bias = maybe_param(use_bias, bias_init, rngs, (out_features,), param_dtype, bias_metadata)
        keep_options(self, locals())

    @names_features(lambda layer: {-1: layer.in_features})
    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        """Convolves the spatial axes; any number of leading axes are batch axes.

        Args:
            inputs: `(*batch, *spatial, in_features)`.
            out_sharding: sharding of the result, in explicit-sharding mode.

        Raises:
            ValueError: if the mask's shape differs from the kernel's, or for an invalid padding.
        """
        return ops.conv(
            inputs,
            *_masked(self),
            strides=_or_one(self.strides),
            padding=_padding(self.padding),
            input_dilation=_or_one(self.input_dilation),
            kernel_dilation=_or_one(self.kernel_dilation),
            feature_group_count=self.feature_group_count,
            conv_general_dilated=self.conv_general_dilated,
            out_sharding=out_sharding,
            **product_options(self),
        )


def _or_one(sizes: Sizes | None) -> Sizes:
    return 1 if sizes is None else sizes


def _padding(padding: Any) -> Any:
    """Converts padding names to upper case, which the ops need and `jax.lax` does not."""
    return padding.upper() if isinstance(padding, str) else padding


class ConvTranspose(_Convolution):
    """A transposed convolution: one with fractional strides.

    Args:
        strides: how much each spatial axis grows.
        padding: as in `jax.lax.conv_transpose`, an int for all axes or for each, or "CIRCULAR".
        transpose_kernel: whether to flip the window and swap the features, as the gradient of a convolution does.

    Other arguments are as in `Conv`.

    >>> from weft import nnx
    >>> layer = ConvTranspose(3, 4, kernel_size=(3,), strides=2, rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((1, 8, 3))).shape
    (1, 16, 4)
    """

    transpose_kernel: bool

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: Sizes,
        strides: Sizes | None = None,
        *,
        padding: Any = "SAME",
        kernel_dilation: Sizes | None = None,
        use_bias: bool = True,
        mask: jax.Array | None = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = None,
        kernel_init: Callable[..., Any] = default_kernel_init,
        bias_init: Callable[..., Any] = default_bias_init,
        transpose_kernel: bool = False,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        preferred_element_type: Any = None,
        rngs: Any,
        kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ):
        # In flax's order of attributes. `keep_options` stores every local name, so `features` comes after it.
        self.kernel_size = kernel_size = as_sizes(kernel_size)
        keep_options(self, locals())
        # With `transpose_kernel` the kernel has the layout of the convolution whose gradient this layer is.
        features = (out_features, in_features) if transpose_kernel else (in_features, out_features)
        self.kernel_shape = (*kernel_size, *features)
        self.kernel = make_param(kernel_init, rngs, self.kernel_shape, param_dtype, kernel_metadata)
        self.bias = maybe_param(use_bias, bias_init, rngs, (out_features,), param_dtype, bias_metadata)

    @names_features(lambda layer: {-1: layer.in_features})
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Convolves the spatial axes; any number of leading axes are batch axes.

        Raises:
            ValueError: if the mask's shape differs from the kernel's.
        """
        return ops.conv_transpose(
            inputs,
            *_masked(self),
            strides=_or_one(self.strides),
            padding=_pairs(self.padding, len(self.kernel_size)),
            kernel_dilation=_or_one(self.kernel_dilation),
            transpose_kernel=self.transpose_kernel,
            **product_options(self),
        )


def _pairs(padding: Any, rank: int) -> Any:
    if isinstance(padding, str):
        return _padding(padding)
    pads: Sequence[Any] = (padding,) * rank if isinstance(padding, int) else padding
    if len(pads) != rank:
        raise ConfigError(
            f"Invalid padding format: padding has {len(pads)} entries for {rank} spatial axes: {tuple(pads)}"
        )
    return tuple((pad, pad) if isinstance(pad, int) else tuple(pad) for pad in pads)
