"""Shared by linear maps and convolutions: the base class `Affine`, the default initializers, and two functions.

Layers of `nn` share functions and not methods. In flax, `nnx.Linear.__call__(obj, x)` works for any object with a
linear layer's attributes, and a subclass may define a method of any name: a helper method would break both.
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

# flax has these names in several modules, and programs import them from there.
default_kernel_init = initializers.lecun_normal()
default_bias_init = initializers.zeros_init()


class Affine(Module):
    """Declares the attributes of layers that multiply by a kernel and add a bias. (`Einsum` has no `use_bias`.)"""

    kernel: Param[jax.Array]
    bias: Param[jax.Array] | None
    use_bias: bool
    dtype: Any
    param_dtype: Any
    precision: Any
    promote_dtype: Callable[..., Any]
    preferred_element_type: Any


def learned(layer: Any) -> tuple[jax.Array, jax.Array | None]:
    """Returns the kernel and the bias of a layer, as arrays; the bias may be None."""
    # Arrays and not Variables: the ops of `weft.modules` are functions of arrays, and know nothing of NNX.
    return layer.kernel[...], value_of(layer.bias)


def product_options(layer: Any) -> dict[str, Any]:
    """The options of a layer that all product ops take, under the ops' names."""
    return {
        "dtype": layer.dtype,
        "out_dtype": layer.preferred_element_type,
        "precision": layer.precision,
        "promote": as_promotion(layer.promote_dtype),
    }
