"""Normalisation: `BatchNorm`, `LayerNorm`, `RMSNorm`, `GroupNorm` and `InstanceNorm`.

All share these arguments:

    epsilon: added to the variance.
    dtype: the dtype of the result; by default what input and parameters promote to.
    param_dtype: the dtype of scale and bias.
    use_bias, use_scale: whether to learn them.
    bias_init, scale_init: their initializers.
    axis_name: a named axis (of `vmap`, `pmap` or `shard_map`) to average over too.
    axis_index_groups: groups of its indices that are averaged apart.
    use_fast_variance: whether the variance is E[x²] - E[x]², in one pass.
    promote_dtype: casts the inputs and parameters to one dtype, given `dtype`.
    rngs: a key for each parameter is drawn from the stream `params`.
    bias_metadata, scale_metadata: metadata of the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from weft.modules import ops
from weft.modules.construct import ConfigError
from weft.nnx.kinds import BatchStat, Param
from weft.nnx.module import Module
from weft.nnx.nn import dtypes, initializers
from weft.nnx.nn.construct import NO_METADATA, Metadata, first_given, maybe_param, value_of
from weft.nnx.nn.dtypes import as_promotion

Axes = int | Sequence[int]
_zeros, _ones = initializers.zeros_init(), initializers.ones_init()


class _Norm(Module):
    """What all norms keep, and hand to the ops."""

    scale: Param[jax.Array] | None
    bias: Param[jax.Array] | None
    epsilon: float
    dtype: Any
    axis_name: Any
    axis_index_groups: Any
    use_fast_variance: bool
    promote_dtype: Callable[..., Any]

    def _options(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "dtype": self.dtype,
            "axis_name": self.axis_name,
            "axis_index_groups": self.axis_index_groups,
            "use_fast_variance": self.use_fast_variance,
            "promote": as_promotion(self.promote_dtype),
        }


class BatchNorm(_Norm):
    """Normalises each feature over the batch, and keeps running statistics of it.

    While training it normalises by the batch's own moments and updates `mean` and `var`; otherwise it normalises by
    those, and leaves them as they are. `model.train()` and `model.eval()` say which.

    Args:
        num_features: number of features.
        use_running_average: whether to normalise by the running statistics; each call may say so too.
        axis: the features' axis; all others are the batch.
        momentum: how much of the running statistics is kept at each step.

    >>> from weft import nnx
    >>> norm = BatchNorm(2, momentum=0.5, rngs=nnx.Rngs(0))
    >>> y = norm(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> norm.mean[...].tolist()
    [1.0, 1.5]

    Source: Ioffe and Szegedy, "Batch Normalization", 2015.
    """

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
        bias_init: Callable[..., Any] = _zeros,
        scale_init: Callable[..., Any] = _ones,
        axis_name: str | None = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        rngs: Any,
        bias_metadata: Metadata = NO_METADATA,
        scale_metadata: Metadata = NO_METADATA,
    ):
        self.mean = BatchStat(jnp.zeros((num_features,), jnp.float32))
        self.var = BatchStat(jnp.ones((num_features,), jnp.float32))
        self.scale = maybe_param(use_scale, scale_init, rngs, (num_features,), param_dtype, scale_metadata)
        self.bias = maybe_param(use_bias, bias_init, rngs, (num_features,), param_dtype, bias_metadata)
        self.num_features = num_features
        self.use_running_average = use_running_average
        self.axis = axis
        self.momentum = momentum
        self.epsilon = epsilon
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.use_bias = use_bias
        self.use_scale = use_scale
        self.axis_name = axis_name
        self.axis_index_groups = axis_index_groups
        self.use_fast_variance = use_fast_variance
        self.promote_dtype = promote_dtype

    def __call__(
        self, x: jax.Array, use_running_average: bool | None = None, *, mask: jax.Array | None = None
    ) -> jax.Array:
        """Normalises, and updates the running statistics while training.

        Args:
            x: the batch.
            use_running_average: this call's mode, if it is not the layer's own.
            mask: which values count for the statistics; broadcasts against `x`.

        Raises:
            ValueError: if there is no mode.
        """
        running = first_given("use_running_average", use_running_average, self.use_running_average, owner=self)
        features = ops.canonical_axes(self.axis, jnp.ndim(x))
        y, mean, var = ops.batch_norm(
            x,
            self.mean[...],
            self.var[...],
            value_of(self.scale),
            value_of(self.bias),
            mask,
            momentum=None if running else self.momentum,
            axes=tuple(axis for axis in range(jnp.ndim(x)) if axis not in features),
            feature_axes=features,
            **self._options(),
        )
        if not running:
            # Statistics of a level that is differentiated may be differentiated through; those kept here may not.
            own = self.mean._can_update or self.var._can_update
            self.mean[...], self.var[...] = (lax.stop_gradient(value) if own else value for value in (mean, var))
        return y

    def set_view(self, use_running_average: bool | None = None) -> None:
        """What `nnx.view` sets.

        Args:
            use_running_average: whether to normalise by the running statistics.
        """
        if use_running_average is not None:
            self.use_running_average = use_running_average


class LayerNorm(_Norm):
    """Normalises each example over its features.

    Args:
        num_features: number of features.
        reduction_axes: the axes to normalise over.
        feature_axes: the axes that scale and bias range over.

    >>> from weft import nnx
    >>> LayerNorm(2, epsilon=0.0, rngs=nnx.Rngs(0))(jnp.array([1.0, 3.0])).tolist()
    [-1.0, 1.0]

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-6,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Callable[..., Any] = _zeros,
        scale_init: Callable[..., Any] = _ones,
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
        self.num_features = num_features
        self.epsilon = epsilon
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.use_bias = use_bias
        self.use_scale = use_scale
        self.reduction_axes = reduction_axes
        self.feature_axes = feature_axes
        self.axis_name = axis_name
        self.axis_index_groups = axis_index_groups
        self.use_fast_variance = use_fast_variance
        self.promote_dtype = promote_dtype

    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalises. `mask` says which values count for the statistics, and broadcasts against `x`."""
        return ops.norm(
            x,
            value_of(self.scale),
            value_of(self.bias),
            mask,
            axes=self.reduction_axes,
            feature_axes=self.feature_axes,
            **self._options(),
        )


class RMSNorm(_Norm):
    """Divides each example by the root mean square of its features.

    Args:
        num_features: number of features.
        reduction_axes: the axes to take the mean over.
        feature_axes: the axes that the scale ranges over.

    >>> from weft import nnx
    >>> RMSNorm(2, epsilon=0.0, rngs=nnx.Rngs(0))(jnp.array([7.0, 1.0])).tolist()
    [1.399999976158142, 0.20000000298023224]

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-6,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        use_scale: bool = True,
        scale_init: Callable[..., Any] = _ones,
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
        self.num_features = num_features
        self.epsilon = epsilon
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.use_scale = use_scale
        self.reduction_axes = reduction_axes
        self.feature_axes = feature_axes
        self.axis_name = axis_name
        self.axis_index_groups = axis_index_groups
        self.use_fast_variance = use_fast_variance
        self.promote_dtype = promote_dtype

    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Scales. `mask` says which values count for the mean, and broadcasts against `x`."""
        return ops.norm(
            x,
            value_of(self.scale),
            None,
            mask,
            axes=self.reduction_axes,
            feature_axes=self.feature_axes,
            use_mean=False,
            **self._options(),
        )


class GroupNorm(_Norm):
    """Normalises each example over its space and groups of consecutive features, the last axis.

    Args:
        num_features: number of features.
        num_groups: how many groups they are in.
        group_size: instead (with `num_groups=None`), how many features a group has.
        reduction_axes: the axes to normalise over, the last one among them; by default all but the first.

    Raises:
        ValueError: if both or neither of `num_groups` and `group_size` are given, or do not divide the features.

    >>> from weft import nnx
    >>> norm = GroupNorm(4, num_groups=2, epsilon=1e-12, rngs=nnx.Rngs(0))
    >>> norm(jnp.array([[1.0, 3.0, 5.0, 5.0]])).tolist()
    [[-1.0, 1.0, 0.0, 0.0]]

    Source: Wu and He, "Group Normalization", 2018.
    """

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
        bias_init: Callable[..., Any] = _zeros,
        scale_init: Callable[..., Any] = _ones,
        reduction_axes: Axes | None = None,
        axis_name: str | None = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        rngs: Any,
        bias_metadata: Metadata = NO_METADATA,
        scale_metadata: Metadata = NO_METADATA,
    ):
        self.feature_axis = -1
        self.num_groups, self.group_size = _groups(num_features, num_groups, group_size)
        self.scale = maybe_param(use_scale, scale_init, rngs, (num_features,), param_dtype, scale_metadata)
        self.bias = maybe_param(use_bias, bias_init, rngs, (num_features,), param_dtype, bias_metadata)
        self.epsilon = epsilon
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.use_bias = use_bias
        self.use_scale = use_scale
        self.reduction_axes = reduction_axes
        self.axis_name = axis_name
        self.axis_index_groups = axis_index_groups
        self.use_fast_variance = use_fast_variance
        self.promote_dtype = promote_dtype

    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalises. `mask`, shaped like `x` where it is not of size one, says which values count."""
        axes = (self.reduction_axes,) if isinstance(self.reduction_axes, int) else self.reduction_axes
        return ops.group_norm(
            x, value_of(self.scale), value_of(self.bias), mask, groups=self.num_groups, axes=axes, **self._options()
        )


def _groups(features: int, groups: int | None, size: int | None) -> tuple[int, int]:
    """The number of groups and the size of each."""
    if (groups is None) == (size is None):
        raise ConfigError(
            "GroupNorm takes either `num_groups` or `group_size`",
            at=f"num_groups={groups}, group_size={size}",
            fix="for a size, pass num_groups=None with it",
        )
    given = size if groups is None else groups
    if not isinstance(given, int) or given <= 0 or features % given:
        what = "a group size of" if groups is None else "groups:"
        raise ConfigError(f"GroupNorm cannot divide {features} features by {what} {given}")
    return (features // given, given) if groups is None else (given, features // given)


class InstanceNorm(_Norm):
    """Normalises each example over its space, each feature apart.

    Args:
        num_features: number of features.
        feature_axes: the features' axes; all others but the first are normalised over.

    >>> from weft import nnx
    >>> norm = InstanceNorm(1, epsilon=1e-12, rngs=nnx.Rngs(0))
    >>> norm(jnp.array([[[1.0], [3.0]]])).tolist()
    [[[-1.0], [1.0]]]

    Source: Ulyanov, Vedaldi and Lempitsky, "Instance Normalization", 2016.
    """

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-6,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Callable[..., Any] = _zeros,
        scale_init: Callable[..., Any] = _ones,
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
        self.num_features = num_features
        self.epsilon = epsilon
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.use_bias = use_bias
        self.use_scale = use_scale
        self.feature_axes = feature_axes
        self.axis_name = axis_name
        self.axis_index_groups = axis_index_groups
        self.use_fast_variance = use_fast_variance
        self.promote_dtype = promote_dtype

    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalises. `mask` says which values count for the statistics, and broadcasts against `x`.

        Raises:
            ValueError: if the first axis is one of the features', as it is the batch.
        """
        features = ops.canonical_axes(self.feature_axes, jnp.ndim(x))
        if 0 in features:
            raise ConfigError("InstanceNorm: the first axis is the batch, not features", at=f"x: {jnp.shape(x)}")
        return ops.norm(
            x,
            value_of(self.scale),
            value_of(self.bias),
            mask,
            axes=tuple(axis for axis in range(1, jnp.ndim(x)) if axis not in features),
            feature_axes=features,
            **self._options(),
        )
