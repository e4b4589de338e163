"""What linear maps and convolutions share: the class `Affine`, and initializers."""

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

    def _learned(self) -> tuple[jax.Array, jax.Array | None]:
        """Kernel and bias."""
        return self.kernel[...], value_of(self.bias)

    def _options(self) -> dict[str, Any]:
        return {
            "dtype": self.dtype,
            "out_dtype": self.preferred_element_type,
            "precision": self.precision,
            "promote": as_promotion(self.promote_dtype),
        }
