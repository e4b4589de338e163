"""`BatchNorm`, `LayerNorm` and `RMSNorm`. The other norms are re-exported, because flax has them in this module.

The module `normalizer` describes the arguments that all norms have.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType as MappingProxyType  # libraries replace this name of flax's module
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from weft.modules import ops
from weft.nnx.nn import dtypes
from weft.nnx.nn.canonical import abs_sq as _abs_sq  # noqa: F401
from weft.nnx.nn.canonical import canonicalize_axes as _canonicalize_axes  # noqa: F401
from weft.nnx.nn.canonical import compute_stats as _compute_stats  # noqa: F401
from weft.nnx.nn.canonical import l2_normalize as _l2_normalize  # noqa: F401
from weft.nnx.nn.canonical import normalize as _normalize  # noqa: F401
from weft.nnx.nn.construct import NO_METADATA, Metadata, first_given, keep_options, maybe_param
from weft.nnx.nn.features import names_features
from weft.nnx.nn.group_normalization import GroupNorm, InstanceNorm
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
from weft.nnx.nn.weight_normalization import SpectralNorm, WeightNorm
from weft.nnx.types import Array as Array
from weft.nnx.types import Dtype as Dtype
from weft.nnx.types import Initializer as Initializer
from weft.nnx.variable.kinds import BatchStat

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm", "SpectralNorm", "WeightNorm"]


class BatchNorm(Normalizer):
    """Normalises each feature over the batch, and keeps running statistics.

    In training mode it normalises by the batch's moments, and updates `mean` and `var`. Otherwise it normalises by
    `mean` and `var`, without updating them. `model.train()` and `model.eval()` set the mode.

    Args:
        num_features: number of features.
        use_running_average: whether to normalise by the running statistics; a call may override it.
        axis: the feature axis; all others are batch axes.
        momentum: the weight of the old running statistics in an update.

    >>> from weft import nnx
    >>> norm = BatchNorm(2, momentum=0.5, rngs=nnx.Rngs(0))
    >>> y = norm(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> norm.mean[...].tolist()
    [1.0, 1.5]

    Source: Ioffe and Szegedy, "Batch Normalization", 2015.
    """

    use_running_average: bool | None
    axis: int
    momentum: float

    def __init__(
        self,
        num_features: int,
        *,
        use_running_average: bool | None = False,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-5,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Callable[..., Any] = zeros,
        scale_init: Callable[..., Any] = ones,
        axis_name: str | None = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        rngs: Any,
        bias_metadata: Metadata = NO_METADATA,
        scale_metadata: Metadata = NO_METADATA,
    ):
        # float32 whatever `param_dtype` is: an update adds a hundredth of a difference, which half precision rounds
        # away.
        self.mean = BatchStat(jnp.zeros((num_features,), jnp.float32))
        self.var = BatchStat(jnp.ones((num_features,), jnp.float32))
        self.scale = maybe_param(use_scale, scale_init, rngs, (num_features,), param_dtype, scale_metadata)
        self.bias = maybe_param(use_bias, bias_init, rngs, (num_features,), param_dtype, bias_metadata)
        keep_options(self, locals())

    @names_features(features_of_norm)
    def __call__(
        self, x: jax.Array, use_running_average: bool | None = None, *, mask: jax.Array | None = None
    ) -> jax.Array:
        """Normalises, and updates the running statistics while training.

        Args:
            x: the batch.
            use_running_average: overrides the layer's mode for this call.
            mask: selects the values for the statistics; broadcasts against `x`.

        Raises:
            ValueError: if neither the call nor the layer has a mode.
        """
        running = first_given("use_running_average", use_running_average, self.use_running_average, owner=self)
        features = ops.canonical_axes(self.axis, jnp.ndim(x))
        # `momentum=None` means that the running statistics are used and not updated.
        y, mean, var = ops.batch_norm(
            x,
            self.mean[...],
            self.var[...],
            *learned_of_norm(self),
            mask,
            momentum=None if running else self.momentum,
            axes=tuple(axis for axis in range(jnp.ndim(x)) if axis not in features),
            feature_axes=features,
            **norm_options(self),
        )
        if not running:
            # No gradient flows into statistics that are stored in Variables of this trace level. If neither Variable
            # may be written here, the assignment below raises.
            own = self.mean._can_update or self.var._can_update
            self.mean[...], self.var[...] = (lax.stop_gradient(value) if own else value for value in (mean, var))
        return y

    def set_view(self, use_running_average: bool | None = None) -> None:
        """Sets options of this layer; `nnx.view` calls it on a copy.

        Args:
            use_running_average: whether to normalise by the running statistics.
        """
        if use_running_average is not None:
            self.use_running_average = use_running_average


class LayerNorm(Normalizer):
    """Normalises each example over its features.

    Args:
        num_features: number of features.
        reduction_axes: the axes to normalise over.
        feature_axes: the axes of scale and bias.

    Raises:
        TypeError: if `rngs` are no `Rngs`.
        ValueError: from a call, if the input has another number of features.

    >>> from weft import nnx
    >>> LayerNorm(2, epsilon=0.0, rngs=nnx.Rngs(0))(jnp.array([1.0, 3.0])).tolist()
    [-1.0, 1.0]

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """

    reduction_axes: Axes
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
        reduction_axes: Axes = -1,
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
        """Normalises `x`. `mask` broadcasts against `x`, and selects the values for the statistics."""
        return normalized(self, x, mask, self.reduction_axes, self.feature_axes)


class RMSNorm(Normalizer):
    """Divides each example by the root mean square of its features.

    Args:
        num_features: number of features.
        reduction_axes: the axes of the mean.
        feature_axes: the axes of the scale.

    Raises:
        TypeError: if `rngs` are no `Rngs`.
        ValueError: from a call, if the input has another number of features.

    >>> from weft import nnx
    >>> RMSNorm(2, epsilon=0.0, rngs=nnx.Rngs(0))(jnp.array([7.0, 1.0])).tolist()
    [1.399999976158142, 0.20000000298023224]

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """

    reduction_axes: Axes
    feature_axes: Axes

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-6,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        use_scale: bool = True,
        scale_init: Callable[..., Any] = ones,
        reduction_axes: Axes = -1,
        feature_axes: Axes = -1,
        axis_name: str | None = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        rngs: Any,
        scale_metadata: Metadata = NO_METADATA,
    ):
        self.scale = maybe_param(use_scale, scale_init, rngs, (num_features,), param_dtype, scale_metadata)
        keep_options(self, locals())

    @names_features(features_of_norm)
    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Normalises `x`. `mask` broadcasts against `x`, and selects the values for the mean."""
        return normalized(self, x, mask, self.reduction_axes, self.feature_axes, use_mean=False)
