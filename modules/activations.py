"""Activations with parameters: the pure op `prelu`. Those without are `jax.nn`'s own."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft.modules.dtypes import as_array, cast, promote
from weft.modules.op import op


@op("dtype", "promote")
def prelu(
    x: Float[Array, "*shape"], slope: Float[Array, "..."], *, dtype: Any = None, promote: Any = promote
) -> Float[Array, "*shape"]:
    """`x` where it is positive, `slope * x` elsewhere.

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
        slope = cast(as_array(slope), x.dtype)
    else:
        x, slope = promote(x, slope, dtype=dtype)
    return jnp.where(x >= 0, x, slope * x)
