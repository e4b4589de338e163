"""`Linear`, `LinearGeneral`, `Einsum` and `Embed`. Convolutions are re-exported, as flax has them in this module."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType as MappingProxyType  # libraries replace this name of flax's module
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from weft.modules import ops
from weft.modules.construct import ConfigError
from weft.nnx.modules.module import Module
from weft.nnx.nn import dtypes, initializers
from weft.nnx.nn.affine import Affine, default_bias_init, default_kernel_init, learned, product_options
from weft.nnx.nn.canonical import canonicalize_padding as canonicalize_padding
from weft.nnx.nn.canonical import canonicalize_tuple as _canonicalize_tuple  # noqa: F401
from weft.nnx.nn.canonical import conv_dimension_numbers as _conv_dimension_numbers  # noqa: F401
from weft.nnx.nn.canonical import normalize_axes as _normalize_axes  # noqa: F401
from weft.nnx.nn.construct import (
    NO_METADATA,
    Metadata,
    Sizes,
    as_sizes,
    first_given,
    keep_options,
    make_param,
    maybe_param,
)
from weft.nnx.nn.convolution import Conv, ConvTranspose
from weft.nnx.nn.dtypes import as_promotion
from weft.nnx.nn.features import names_features
from weft.nnx.objects.attributes import HashableMapping
from weft.nnx.types import ConvGeneralDilatedT as ConvGeneralDilatedT
from weft.nnx.types import DotGeneralT as DotGeneralT
from weft.nnx.types import Dtype as Dtype
from weft.nnx.types import EinsumT as EinsumT
from weft.nnx.types import Initializer as Initializer
from weft.nnx.types import LaxPadding as LaxPadding
from weft.nnx.types import PaddingLike as PaddingLike
from weft.nnx.types import PrecisionLike as PrecisionLike
from weft.nnx.types import Shape as Shape
from weft.nnx.variable.kinds import Param

__all__ = ["Conv", "ConvTranspose", "Einsum", "Embed", "Linear", "LinearGeneral"]

default_embed_init = initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0)


class LinearGeneral(Affine):
    """A linear map from any axes to any number of new axes.

    Args:
        in_features: sizes of the axes to map.
        out_features: sizes of the new axes, which come last.
        axis: the axes to map.
        batch_axis: sizes of leading axes by position; each index along them has parameters of its own.
        use_bias: whether to add a bias.
        dtype: the dtype to compute in; by default what input and parameters promote to.
        param_dtype: the dtype of the parameters.
        kernel_init, bias_init: initializers, called with the shape of a matrix and of a vector.
        precision: see `jax.lax.Precision`.
        promote_dtype: casts `(inputs, kernel, bias)` to one dtype, given `dtype`.
        dot_general: the product, with the arguments of `jax.lax.dot_general`.
        dot_general_cls: a class or function that makes such a product; called at each call of the layer.
        preferred_element_type: the dtype to accumulate and return.
        rngs: a key for each parameter is drawn from the stream `params`.
        kernel_metadata, bias_metadata: metadata of the parameters.

    Raises:
        ValueError: if the lengths of `axis` and `in_features` differ, or the batch axes are not the leading axes.

    >>> from weft import nnx
    >>> layer = LinearGeneral((2, 3), (4, 5), axis=(1, -1), rngs=nnx.Rngs(0))
    >>> layer.kernel.shape, layer(jnp.ones((16, 2, 3))).shape
    ((2, 3, 4, 5), (16, 4, 5))
    """

    in_features: tuple[int, ...]
    out_features: tuple[int, ...]
    axis: tuple[int, ...]
    batch_axis: Mapping[int, int]
    dot_general: Callable[..., Any] | None
    dot_general_cls: Any

    def __init__(
        self,
        in_features: Sizes,
        out_features: Sizes,
        *,
        axis: Sizes = -1,
        batch_axis: Mapping[int, int] = HashableMapping({}),
        use_bias: bool = True,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        kernel_init: Callable[..., Any] = default_kernel_init,
        bias_init: Callable[..., Any] = default_bias_init,
        precision: Any = None,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        dot_general: Callable[..., Any] | None = None,
        dot_general_cls: Any = None,
        preferred_element_type: Any = None,
        rngs: Any,
        kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ):
        in_features, out_features, axis = as_sizes(in_features), as_sizes(out_features), as_sizes(axis)
        # A dict has no hash, and as a static attribute it would have to be compared with a copy at each compiled call.
        batch_axis = HashableMapping(batch_axis)
        # flax sets these two attributes last, and the order of attributes shows in `vars` and in the layer's text.
        keep_options(self, locals(), but=("promote_dtype", "preferred_element_type"))
        self.promote_dtype = promote_dtype
        self.preferred_element_type = preferred_element_type
        if len(in_features) != len(axis):
            raise ConfigError(
                "in_features and axis must have the same length: "
                f"LinearGeneral got {len(axis)} axes, and {len(in_features)} sizes for them",
                at=f"in_features={in_features}, axis={axis}",
            )
        if sorted(batch_axis) != list(range(len(batch_axis))):
            raise ConfigError(
                "the batch axes of LinearGeneral must be the leading axes 0, 1, ...",
                at=f"batch_axis={dict(batch_axis)}",
            )
        batch = tuple(batch_axis.values())
        kernel_matrix = (math.prod(batch) * math.prod(in_features), math.prod(out_features))
        kernel_shape, bias_shape = (*batch, *in_features, *out_features), (*batch, *out_features)
        # Initializers compute fans from a matrix's shape; with the full shape they would scale by the wrong axes.
        kernel_init = functools.partial(initializers.reshaped, kernel_init, kernel_matrix)
        bias_init = functools.partial(initializers.reshaped, bias_init, (math.prod(bias_shape),))
        self.kernel = make_param(kernel_init, rngs, kernel_shape, param_dtype, kernel_metadata)
        self.bias = maybe_param(use_bias, bias_init, rngs, bias_shape, param_dtype, bias_metadata)

    @names_features(lambda layer: dict(zip(layer.axis, layer.in_features, strict=True)))
    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        """Applies the map.

        Args:
            inputs: an array with the axes `axis`.
            out_sharding: sharding of the result, in explicit-sharding mode.
        """
        dot_general = self.dot_general_cls() if self.dot_general_cls is not None else self.dot_general
        return ops.linear_general(
            inputs,
            *learned(self),
            axes=self.axis,
            batch_axes=tuple(self.batch_axis),
            dot_general=lax.dot_general if dot_general is None else dot_general,
            out_sharding=out_sharding,
            **product_options(self),
        )


class Linear(Affine):
    """A linear map of the last axis.

    Args:
        in_features, out_features: the size of that axis before and after.
        dot_general: the product, with the arguments of `jax.lax.dot_general`.

    Other arguments are as in `LinearGeneral`.

    Raises:
        TypeError: if `rngs` are no `Rngs`.
        ValueError: from a call, if the input has another number of features.

    >>> from weft import nnx
    >>> Linear(3, 4, rngs=nnx.Rngs(0))(jnp.ones((2, 5, 3))).shape
    (2, 5, 4)
    """

    in_features: int
    out_features: int
    dot_general: Callable[..., Any]

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        use_bias: bool = True,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = None,
        kernel_init: Callable[..., Any] = default_kernel_init,
        bias_init: Callable[..., Any] = default_bias_init,
        dot_general: Callable[..., Any] = lax.dot_general,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        preferred_element_type: Any = None,
        rngs: Any,
        kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ):
        self.kernel = make_param(kernel_init, rngs, (in_features, out_features), param_dtype, kernel_metadata)
        self.bias = maybe_param(use_bias, bias_init, rngs, (out_features,), param_dtype, bias_metadata)
        keep_options(self, locals())

    @names_features(lambda layer: {-1: layer.in_features})
    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        """Applies the map to the last axis. `out_sharding` is the result's sharding, in explicit-sharding mode."""
        return ops.linear(
            inputs, *learned(self), dot_general=self.dot_general, out_sharding=out_sharding, **product_options(self)
        )


class Einsum(Affine):
    """An einsum with a learned second operand, and a bias.

    Args:
        einsum_str: two operands and an explicit output, such as `"...i,ij->...j"`.
        kernel_shape: shape of the second operand.
        bias_shape: shape of the bias; None for no bias.
        einsum_op: the summation, with the arguments of `jax.numpy.einsum`.

    Other arguments are as in `LinearGeneral`.

    Raises:
        ValueError: if the equation has no explicit output, or not two operands.

    >>> from weft import nnx
    >>> layer = Einsum("nta,hab->nthb", (8, 2, 4), (8, 4), rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((3, 5, 2))).shape
    (3, 5, 8, 4)
    """

    einsum_str: str
    kernel_shape: Sizes
    bias_shape: Sizes | None
    einsum_op: Callable[..., Any]

    def __init__(
        self,
        einsum_str: str,
        kernel_shape: Sizes,
        bias_shape: Sizes | None = None,
        *,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = None,
        kernel_init: Callable[..., Any] = default_kernel_init,
        bias_init: Callable[..., Any] = default_bias_init,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        einsum_op: Callable[..., Any] = jnp.einsum,
        preferred_element_type: Any = None,
        rngs: Any,
        kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ):
        # A wrong equation fails here, where it is written, and not at the first call.
        einsum_str = ops.check_equation(einsum_str)
        self.kernel = make_param(kernel_init, rngs, kernel_shape, param_dtype, kernel_metadata)
        self.bias = maybe_param(bias_shape is not None, bias_init, rngs, bias_shape or (), param_dtype, bias_metadata)
        keep_options(self, locals())

    def __call__(self, inputs: jax.Array, einsum_str: str | None = None, out_sharding: Any = None) -> jax.Array:
        """Computes the einsum.

        Args:
            inputs: the first operand.
            einsum_str: overrides the layer's equation for this call.
            out_sharding: sharding of the result, in explicit-sharding mode.
        """
        return ops.einsum(
            inputs,
            *learned(self),
            # Checked again: the call may pass an equation of its own.
            equation=ops.check_equation(first_given("einsum_str", einsum_str, self.einsum_str, owner=self)),
            product=self.einsum_op,
            out_sharding=out_sharding,
            **product_options(self),
        )


class Embed(Module):
    """A table of vectors, looked up by integers.

    Args:
        num_embeddings: number of rows.
        features: size of each.
        dtype: the dtype of the results, of `attend` too; by default the table's.
        param_dtype: the dtype of the table.
        embedding_init: initializer.
        promote_dtype: casts `(embedding,)`, or `(query, embedding)` in `attend`, to one dtype, given `dtype`.
        rngs: a key is drawn from the stream `params`.
        embedding_metadata: metadata of the table.

    >>> from weft import nnx
    >>> table = Embed(5, 3, rngs=nnx.Rngs(0))
    >>> h = table(jnp.array([[0, 1], [-1, -2]]))
    >>> h.shape, table.attend(h).shape
    ((2, 2, 3), (2, 2, 5))
    """

    embedding: Param[jax.Array]

    def __init__(
        self,
        num_embeddings: int,
        features: int,
        *,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        embedding_init: Callable[..., Any] = default_embed_init,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        rngs: Any,
        embedding_metadata: Metadata = NO_METADATA,
    ):
        self.embedding = make_param(embedding_init, rngs, (num_embeddings, features), param_dtype, embedding_metadata)
        self.num_embeddings = num_embeddings
        self.features = features
        # Without a `dtype`, results have the dtype of the table, as in flax.
        self.dtype = dtype or self.embedding.dtype
        self.param_dtype = param_dtype
        self.promote_dtype = promote_dtype

    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        """Looks up rows. A negative index counts from the end; an index out of range gives NaNs.

        Raises:
            ValueError: if the inputs are not integers.
        """
        # Refused by name: the error of JAX's gather for a float index does not mention the layer.
        if not jnp.issubdtype(jnp.result_type(inputs), jnp.integer):
            raise ConfigError(
                f"Input type must be an integer: Embed got {jnp.result_type(inputs)}",
                fix="cast the inputs, or use Linear on one-hot vectors",
            )
        look_up: Any = functools.partial(ops.embed, dtype=self.dtype, promote=as_promotion(self.promote_dtype))
        # JAX cannot infer the sharding of a gather on explicit axes, so the look-up runs with automatic axes.
        if out_sharding is not None:
            look_up = jax.sharding.auto_axes(look_up, out_sharding=out_sharding)
        return look_up(inputs, self.embedding[...])

    @names_features(lambda layer: {-1: layer.features})
    def attend(self, query: jax.Array, out_sharding: Any = None) -> jax.Array:
        """Returns the inner products of queries `(*batch, features)` with every row, `(*batch, num_embeddings)`."""
        promote = as_promotion(self.promote_dtype)
        return ops.attend(query, self.embedding[...], dtype=self.dtype, out_sharding=out_sharding, promote=promote)
