"""Normalising by groups of features: the pure op `group_norm`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float
from weft.core.errors import AxisError
from weft.modules.dtypes import promote
from weft.modules.norms.moments import moments, normalize
from weft.modules.op import op


@op("groups", "axes", "epsilon", "dtype", "axis_name", "axis_index_groups", "use_fast_variance", "promote")
def group_norm(
    x: Float[Array, "batch *space features"],
    scale: Float[Array, "features"] | None = None,
    bias: Float[Array, "features"] | None = None,
    mask: Bool[Array, "#batch *#space features"] | None = None,
    *,
    groups: int,
    axes: Sequence[int] | None = None,
    epsilon: float = 1e-6,
    dtype: Any = None,
    use_fast_variance: bool = True,
    axis_name: Any = None,
    axis_index_groups: Any = None,
    promote: Any = promote,
) -> Float[Array, "batch *space features"]:
    """Normalises each example over its space and each group of consecutive features.

    Args:
        x: the values.
        scale, bias, epsilon, dtype, use_fast_variance, axis_name, axis_index_groups, promote: as in `norm`.
        mask: which values count; of size one or like `x` on each axis, and always like it on the last.
        groups: how many groups the features are in.
        axes: what to reduce, the features among it; by default all but the first.

    >>> group_norm(jnp.array([[1.0, 3.0, 5.0, 5.0]]), groups=2, epsilon=1e-12).tolist()
    [[-1.0, 1.0, 0.0, 0.0]]

    Source: Wu and He, "Group Normalization", 2018.
    """
    x, scale, bias = promote(x, scale, bias, dtype=dtype)
    features = x.shape[-1]
    if features % groups:
        raise AxisError(f"{features} features do not fall into {groups} groups", at=f"x: {jax.typeof(x)}")
    axes = range(1, x.ndim) if axes is None else axes
    others = sorted({range(x.ndim)[axis] for axis in axes} - {x.ndim - 1})
    if mask is not None:
        mask = lax.reshape(mask, (*mask.shape[:-1], groups, features // groups))
    mean, variance = moments(
        lax.reshape(x, (*x.shape[:-1], groups, features // groups)),
        (*others, x.ndim),
        dtype=dtype,
        axis_name=axis_name,
        axis_index_groups=axis_index_groups,
        use_fast_variance=use_fast_variance,
        mask=mask,
    )
    mean, variance = (jnp.repeat(value, features // groups, axis=-1) for value in (mean, variance))
    return normalize(x, mean, variance, scale, bias, axes=others, epsilon=epsilon, dtype=dtype)
