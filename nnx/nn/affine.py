"""What linear maps and convolutions share: the class `Affine`, and initializers.

What they share to be called are functions, here as in all of `nn`: a layer's method may be called with any object that
has the layer's attributes, and a subclass may have any method of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from weft.nnx.modules.module import Module
from weft.nnx.nn import initializers
from weft.nnx.nn.construct import value_of
from weft.nnx.nn.dtypes import as_promotion
from weft.nnx.variable.kinds import Param

default_kernel_init = initializers.lecun_normal()
default_bias_init = initializers.zeros_init()


class Affine(Module):
    """A product with a kernel, and a bias: what they keep, and hand to the ops; but `Einsum` has no `use_bias`."""

    kernel: Param[jax.Array]
    bias: Param[jax.Array] | None
    use_bias: bool
    dtype: Any
    param_dtype: Any
    precision: Any
    promote_dtype: Callable[..., Any]
    preferred_element_type: Any


def learned(layer: Any) -> tuple[jax.Array, jax.Array | None]:
    """The kernel and the bias of a layer."""
    return layer.kernel[...], value_of(layer.bias)


def product_options(layer: Any) -> dict[str, Any]:
    """A layer's options that all products take."""
    return {
        "dtype": layer.dtype,
        "out_dtype": layer.preferred_element_type,
        "precision": layer.precision,
        "promote": as_promotion(layer.promote_dtype),
    }
