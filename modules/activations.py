"""Activations with parameters: the pure op `prelu` and the record `PReLU`.

Activations without parameters are functions of `jax.nn`, and `weft` exports all of them.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft.core.records.module import Module, static
from weft.modules.construct import option_dtype
from weft.modules.dtypes import as_array, cast, promote
from weft.modules.op import op


@op
def prelu(
    x: Float[Array, "*shape"], slope: Float[Array, "..."], *, dtype: Any = None, promote: Any = promote
) -> Float[Array, "*shape"]:
    """Returns `x` where it is positive, and `slope * x` elsewhere.

    Args:
        x: the values.
        slope: learned; broadcasts against `x`.
        dtype: the dtype to compute in; by default that of `x`.
        promote: as in `linear`.

    >>> prelu(jnp.array([-2.0, 2.0]), jnp.array(0.5)).tolist()
    [-1.0, 2.0]

    Source: He et al., "Delving Deep into Rectifiers", 2015.
    """
    if dtype is None:
        x = as_array(x)
        # A float32 slope would turn bfloat16 activations into float32, so it takes the dtype of the input.
        slope = cast(as_array(slope), x.dtype)
    else:
        x, slope = promote(x, slope, dtype=dtype)
    return jnp.where(x >= 0, x, slope * x)


class PReLU(Module):
    """A rectifier whose slope for negative values is learned.

    Args:
        slope: the slope before training.
        dtype: the dtype to compute in; by default the input's.
        param_dtype: the dtype of the slope.

    >>> PReLU(0.5)(jnp.array([-2.0, 2.0])).tolist()
    [-1.0, 2.0]

    Source: He et al., "Delving Deep into Rectifiers", 2015.
    """

    slope: Float[Array, ""]
    dtype: Any = static()

    def __init__(self, slope: float = 0.01, *, dtype: Any = None, param_dtype: Any = jnp.float32):
        self.slope, self.dtype = jnp.asarray(slope, param_dtype), option_dtype(dtype)

    def __call__(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Applies the rectifier to each value."""
        return prelu(x, self.slope, dtype=self.dtype)
