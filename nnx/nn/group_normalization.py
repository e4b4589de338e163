"""`GroupNorm` and `InstanceNorm`: normalisation over groups of features, and of each feature separately.

The module `normalizer` describes the arguments that all norms have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from weft.modules import ops
from weft.modules.construct import ConfigError
from weft.nnx.nn import dtypes
from weft.nnx.nn.construct import NO_METADATA, Metadata, keep_options, maybe_param
from weft.nnx.nn.features import names_features
from weft.nnx.nn.normalizer import (
    Axes,
    Normalizer,
    features_of_norm,
    learned_of_norm,
    norm_options,
    normalized,
    ones,
    zeros,
)


class GroupNorm(Normalizer):
    """Normalises each example over space and groups of consecutive features (of the last axis).

    Args:
        num_features: number of features.
        num_groups: the number of groups.
        group_size: with `num_groups=None`, the number of features of a group.
        reduction_axes: the axes to normalise over, with the last axis; by default all but the first.

    Raises:
        ValueError: if both or neither of `num_groups` and `group_size` are passed, or if it does not divide them.

    >>> from weft import nnx
    >>> norm = GroupNorm(4, num_groups=2, epsilon=1e-12, rngs=nnx.Rngs(0))
    >>> norm(jnp.array([[1.0, 3.0, 5.0, 5.0]])).tolist()
    [[-1.0, 1.0, 0.0, 0.0]]

    Source: Wu and He, "Group Normalization", 2018.
    """

    num_groups: int
    group_size: int
    reduction_axes: Axes | None

    def __init__(
        self,
        num_features: int,
        num_groups: int | None = 32,
        group_size: int | None = None,
        *,
        epsilon: float = 1e-6,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Callable[..., Any] = zeros,
        scale_init: Callable[..., Any] = ones,
        reduction_axes: Axes | None = None,
        axis_name: str | None = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        rngs: Any,
        bias_metadata: Metadata = NO_METADATA,
        scale_metadata: Metadata = NO_METADATA,
    ):
        # An attribute that flax has, and that programs read.
        self.feature_axis = -1
        self.num_groups, self.group_size = _groups(num_features, num_groups, group_size)
        self.scale = maybe_param(use_scale, scale_init, rngs, (num_features,), param_dtype, scale_metadata)
        self.bias = maybe_param(use_bias, bias_init, rngs, (num_features,), param_dtype, bias_metadata)
        # `num_groups` and `group_size` are stored above, where each is computed from the other; flax stores no
        # `num_features` here.
        keep_options(self, locals(), but=("num_features", "num_groups", "group_size"))

    @names_features(features_of_norm)
    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalises `x`. `mask`, of the shape of `x` or with axes of size 1, selects values for the statistics."""
        axes = (self.reduction_axes,) if isinstance(self.reduction_axes, int) else self.reduction_axes
        return ops.group_norm(x, *learned_of_norm(self), mask, groups=self.num_groups, axes=axes, **norm_options(self))


def _groups(features: int, groups: int | None, size: int | None) -> tuple[int, int]:
    """Returns the number of groups and the size of a group."""
    if (groups is None) == (size is None):
        raise ConfigError(
            "GroupNorm takes either `num_groups` or `group_size`",
            at=f"num_groups={groups}, group_size={size}",
            fix="to set group_size, pass num_groups=None",
        )
    divisor = size if groups is None else groups
    # `isinstance` too: a size that is no int, such as 4.0, would fail later in a reshape.
    if not isinstance(divisor, int) or divisor <= 0 or features % divisor:
        divisor_name = "a group size of" if groups is None else "groups:"
        raise ConfigError(
            f"it does not divide the number of channels: GroupNorm has {features} features, {divisor_name} {divisor}"
        )
    return (features // divisor, divisor) if groups is None else (divisor, features // divisor)


class InstanceNorm(Normalizer):
    """Normalises each feature of each example separately, over space.

    Args:
        num_features: number of features.
        feature_axes: the feature axes; the others, except the first (the batch), are normalised over.

    >>> from weft import nnx
    >>> norm = InstanceNorm(1, epsilon=1e-12, rngs=nnx.Rngs(0))
    >>> norm(jnp.array([[[1.0], [3.0]]])).tolist()
    [[[-1.0], [1.0]]]

    Source: Ulyanov, Vedaldi and Lempitsky, "Instance Normalization", 2016.
    """

    feature_axes: Axes

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-6,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Callable[..., Any] = zeros,
        scale_init: Callable[..., Any] = ones,
        feature_axes: Axes = -1,
        axis_name: str | None = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        rngs: Any,
        bias_metadata: Metadata = NO_METADATA,
        scale_metadata: Metadata = NO_METADATA,
    ):
        self.scale = maybe_param(use_scale, scale_init, rngs, (num_features,), param_dtype, scale_metadata)
        self.bias = maybe_param(use_bias, bias_init, rngs, (num_features,), param_dtype, bias_metadata)
        keep_options(self, locals())

    @names_features(features_of_norm)
    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalises `x`. `mask` broadcasts against `x`, and selects the values for the statistics.

        Raises:
            ValueError: if the first axis, which is the batch, is among the feature axes.
        """
        features = ops.canonical_axes(self.feature_axes, jnp.ndim(x))
        if 0 in features:
            raise ConfigError("InstanceNorm: the first axis is the batch, not features", at=f"x: {jnp.shape(x)}")
        axes = tuple(axis for axis in range(1, jnp.ndim(x)) if axis not in features)
        return normalized(self, x, mask, axes, features)
