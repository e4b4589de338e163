"""Norms: `BatchNorm`, `LayerNorm`, `RMSNorm`, `GroupNorm`, `InstanceNorm`, and their base class `Normalizer`.

Those of weights are re-exported, because flax has them in this module. Functions pass a norm's attributes to the ops.

Arguments that all norms have:

    epsilon: added to the variance.
    dtype: the dtype of the result; by default what input and parameters promote to.
    param_dtype: the dtype of scale and bias.
    use_bias, use_scale: whether to have a bias, a scale.
    bias_init, scale_init: their initializers.
    axis_name: a named axis (of `vmap`, `pmap` or `shard_map`) over which to average too.
    axis_index_groups: groups of indices of that axis, each averaged separately.
    use_fast_variance: whether to compute the variance as E[x²] - E[x]², in one pass.
    promote_dtype: casts the inputs and parameters to one dtype, given `dtype`.
    rngs: a key for each parameter is drawn from the stream `params`.
    bias_metadata, scale_metadata: metadata of the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType as MappingProxyType  # libraries replace this name of flax's module
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from weft.modules import ops
from weft.modules.construct import ConfigError
from weft.nnx.modules.module import Module
from weft.nnx.nn import dtypes, initializers
from weft.nnx.nn.canonical import Axes
from weft.nnx.nn.canonical import abs_sq as _abs_sq  # noqa: F401
from weft.nnx.nn.canonical import canonicalize_axes as _canonicalize_axes  # noqa: F401
from weft.nnx.nn.canonical import compute_stats as _compute_stats  # noqa: F401
from weft.nnx.nn.canonical import l2_normalize as _l2_normalize  # noqa: F401
from weft.nnx.nn.canonical import normalize as _normalize  # noqa: F401
from weft.nnx.nn.construct import NO_METADATA, Metadata, first_given, keep_options, maybe_param, value_of
from weft.nnx.nn.dtypes import as_promotion
from weft.nnx.nn.features import names_features
from weft.nnx.nn.weight_normalization import SpectralNorm, WeightNorm
from weft.nnx.types import Array as Array
from weft.nnx.types import Dtype as Dtype
from weft.nnx.types import Initializer as Initializer
from weft.nnx.variable.kinds import BatchStat, Param

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm", "SpectralNorm", "WeightNorm"]

zeros, ones = initializers.zeros_init(), initializers.ones_init()


def features_of_norm(norm: Any) -> dict[int, int]:
    """The number of features of a norm by axis, for `names_features`; empty if there are several feature axes."""
    axes = getattr(norm, "feature_axes", getattr(norm, "axis", -1))
    # From a parameter and not from `num_features`: `GroupNorm` stores none, and a parameter may have been replaced.
    learned = next((value for value in learned_of_norm(norm) if value is not None), None)
    return {axes: learned.shape[0]} if isinstance(axes, int) and learned is not None else {}


class Normalizer(Module):
    """Declares the attributes of norms. (`RMSNorm` has no bias, and `GroupNorm` does not store `num_features`.)"""

    scale: Param[jax.Array] | None
    bias: Param[jax.Array] | None
    num_features: int
    epsilon: float
    dtype: Any
    param_dtype: Any
    use_bias: bool
    use_scale: bool
    axis_name: Any
    axis_index_groups: Any
    use_fast_variance: bool
    promote_dtype: Callable[..., Any]


def begin_norm(norm: Normalizer, arguments: Mapping[str, Any], *, but: Sequence[str] = ()) -> None:
    """Creates the scale and the bias of a norm, and stores its options.

    Args:
        norm: the norm.
        arguments: the constructor's `locals()`.
        but: arguments that are not stored.
    """
    # The scale draws its key first, as in flax.
    for name in ("scale", "bias"):
        if f"use_{name}" in arguments:
            use, init, metadata = (arguments[option] for option in (f"use_{name}", f"{name}_init", f"{name}_metadata"))
            shape, dtype = (arguments["num_features"],), arguments["param_dtype"]
            setattr(norm, name, maybe_param(use, init, arguments["rngs"], shape, dtype, metadata))
    keep_options(norm, arguments, but=but)


def learned_of_norm(norm: Any) -> tuple[jax.Array | None, jax.Array | None]:
    """Returns the scale and the bias of a norm, as arrays or None."""
    return value_of(norm.scale), value_of(getattr(norm, "bias", None))


def norm_options(norm: Any) -> dict[str, Any]:
    """The options of a norm that all norm ops take, under the ops' names."""
    return {
        "epsilon": norm.epsilon,
        "dtype": norm.dtype,
        "axis_name": norm.axis_name,
        "axis_index_groups": norm.axis_index_groups,
        "use_fast_variance": norm.use_fast_variance,
        "promote": as_promotion(norm.promote_dtype),
    }


def normalized(
    norm: Any, x: jax.Array, mask: jax.Array | None, axes: Axes, feature_axes: Axes, **options: Any
) -> jax.Array:
    """Normalises an input by its own moments, with a norm's options."""
    options = {"axes": axes, "feature_axes": feature_axes, **options, **norm_options(norm)}
    return ops.norm(x, *learned_of_norm(norm), mask, **options)


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
        # `num_groups` and `group_size` are stored above, where each is computed from the other; flax stores no
        # `num_features` here.
        begin_norm(self, locals(), but=("num_features", "num_groups", "group_size"))

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
        begin_norm(self, locals())

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
        begin_norm(self, locals())

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
        begin_norm(self, locals())

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
        begin_norm(self, locals())

    @names_features(features_of_norm)
    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Normalises `x`. `mask` broadcasts against `x`, and selects the values for the mean."""
        return normalized(self, x, mask, self.reduction_axes, self.feature_axes, use_mean=False)
