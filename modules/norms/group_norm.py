"""Normalising each example over its space: the op `group_norm`, and the records `GroupNorm` and `InstanceNorm`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float
from weft.core.errors import AxisError
from weft.core.records.module import static
from weft.modules.batches import BATCH_AXES, batch_rank, check_batch_axes, counted
from weft.modules.construct import ConfigError, check_features, check_positive
from weft.modules.dtypes import promote
from weft.modules.norms.moments import moments, norm, normalize
from weft.modules.norms.norm import FeatureNorm, NormOptions
from weft.modules.op import kept_options, op


@op
def group_norm(
    x: Float[Array, "*batch_space features"],
    scale: Float[Array, "features"] | None = None,
    bias: Float[Array, "features"] | None = None,
    mask: Bool[Array, "*#batch_space features"] | None = None,
    *,
    groups: int,
    axes: Sequence[int] | None = None,
    epsilon: float = 1e-6,
    dtype: Any = None,
    use_fast_variance: bool = True,
    axis_name: Any = None,
    axis_index_groups: Any = None,
    promote: Any = promote,
) -> Float[Array, "*batch_space features"]:
    """Normalises each example over its space and each group of consecutive features.

    Args:
        x: the values.
        scale, bias, epsilon, dtype, use_fast_variance, axis_name, axis_index_groups, promote: as in `norm`.
        mask: which values count; of size one or like `x` on each axis, and always like it on the last.
        groups: how many groups the features are in.
        axes: the axes to reduce, the features included; by default all but the first.

    Raises:
        AxisError: if the groups do not divide the features, or scale, bias or mask do not fit the input.
        UnboundAxisError: if nothing around binds `axis_name`.

    >>> group_norm(jnp.array([[1.0, 3.0, 5.0, 5.0]]), groups=2, epsilon=1e-12).tolist()
    [[-1.0, 1.0, 0.0, 0.0]]

    Source: Wu and He, "Group Normalization", 2018.
    """
    x, scale, bias = promote(x, scale, bias, dtype=dtype)
    features = x.shape[-1]
    if features % groups:
        raise AxisError(f"{features} features cannot be divided into {groups} groups", at=f"x: {jax.typeof(x)}")
    axes = range(1, x.ndim) if axes is None else axes
    space = sorted({range(x.ndim)[axis] for axis in axes} - {x.ndim - 1})
    if mask is not None:
        # The mask gets the axis of groups, too, and so has to be whole along the features.
        mask = lax.reshape(mask, (*mask.shape[:-1], groups, features // groups))
    mean, variance = moments(
        lax.reshape(x, (*x.shape[:-1], groups, features // groups)),
        (*space, x.ndim),
        dtype=dtype,
        axis_name=axis_name,
        axis_index_groups=axis_index_groups,
        use_fast_variance=use_fast_variance,
        mask=mask,
    )
    # Repeated for each feature, so that scale and bias, which are by feature, can be applied in the same pass.
    mean, variance = (jnp.repeat(value, features // groups, axis=-1) for value in (mean, variance))
    return normalize(x, mean, variance, scale, bias, axes=space, epsilon=epsilon, dtype=dtype)


class GroupNorm(FeatureNorm):
    """Normalises each example over its space and each group of consecutive features, the last axis.

    The input is `(batch, *space, features)`. In a model that is written for one example, `batch_axes=0` makes it
    `(*space, features)`. Counted from the end, as -3 for images, `batch_axes` holds for both.

    Args:
        features: size of the last axis.
        groups: how many groups the features are in.
        batch_axes: which axes are of the batch, and so are not reduced: `x.shape[:batch_axes]`. With a positive number
            the layer refuses a `vmap` over the batch.
        epsilon: added to the variance.
        use_scale, use_bias: whether to learn them.
        scale_init, bias_init: initialisers from `jax.nn.initializers`.
        dtype: the dtype of the result; by default what input and parameters promote to.
        param_dtype: the dtype of scale and bias.
        use_fast_variance: see `moments`.
        key: only for initialisers that draw.

    Raises:
        ConfigError: if the groups do not divide the features.

    >>> GroupNorm(4, groups=2, epsilon=1e-12)(jnp.array([[1.0, 3.0, 5.0, 5.0]])).tolist()
    [[-1.0, 1.0, 0.0, 0.0]]

    Source: Wu and He, "Group Normalization", 2018.
    """

    groups: int = static()
    batch_axes: int = static()

    def __init__(self, features: int, *, groups: int = 32, batch_axes: int = 1, **options: Unpack[NormOptions]):
        super().__init__(features, **options)
        check_positive("GroupNorm", groups=groups)
        if features % groups:
            raise ConfigError(
                f"GroupNorm: {groups} groups do not divide {features} features",
                fix="pass groups= a divisor of the features",
            )
        self.groups, self.batch_axes = groups, check_batch_axes("GroupNorm", batch_axes)

    def __call__(
        self, x: Float[Array, "*batch_space features"], *, mask: Bool[Array, "*#batch_space features"] | None = None
    ) -> Float[Array, "*batch_space features"]:
        """Normalises.

        Args:
            x: the values.
            mask: which of them count for the moments; of size one or like `x` on each axis, and like it on the last.

        Raises:
            AxisError: if the last axis is not of size `features`, or there is none but the batch's.
        """
        check_features(self, x, self.features)
        x, axes = _reduced(self, x, jnp.ndim(x))
        return group_norm(x, self.scale, self.bias, mask, axes=axes, **kept_options(self, group_norm))


class InstanceNorm(FeatureNorm):
    """Normalises each example over its space, separately for each feature.

    The input is `(batch, *space, features)`. In a model that is written for one example, `batch_axes=0` makes it
    `(*space, features)`. Counted from the end, as -3 for images, `batch_axes` holds for both.

    Args:
        features: size of the last axis.
        others: as in `GroupNorm`.

    >>> InstanceNorm(1, epsilon=1e-12)(jnp.array([[[1.0], [3.0]]])).tolist()
    [[[-1.0], [1.0]]]

    Source: Ulyanov, Vedaldi and Lempitsky, "Instance Normalization", 2016.
    """

    batch_axes: int = static()

    def __init__(self, features: int, *, batch_axes: int = 1, **options: Unpack[NormOptions]):
        super().__init__(features, **options)
        self.batch_axes = check_batch_axes("InstanceNorm", batch_axes)

    def __call__(
        self, x: Float[Array, "*batch_space features"], *, mask: Bool[Array, "*#batch_space #features"] | None = None
    ) -> Float[Array, "*batch_space features"]:
        """Normalises.

        Args:
            x: the values.
            mask: which of them count for the moments; broadcasts against `x`.

        Raises:
            AxisError: if the last axis is not of size `features`, or there is no space to normalise over.
        """
        check_features(self, x, self.features)
        # The features are not reduced: each has moments of its own, which is what tells this norm from `GroupNorm`.
        x, axes = _reduced(self, x, jnp.ndim(x) - 1)
        return norm(x, self.scale, self.bias, mask, axes=axes, **kept_options(self, norm))


def _reduced(layer: GroupNorm | InstanceNorm, x: Any, stop: int) -> tuple[Any, tuple[int, ...]]:
    """Returns the input, and the axes to reduce; refuses none, because a single value is its own mean and would become
    zero."""
    start = batch_rank(layer, x, layer.batch_axes)
    if start >= stop:
        raise AxisError(
            f"{type(layer).__qualname__} has no axis to normalise over after the {start} of the batch",
            at=f"x: {jax.typeof(x)}",
            fix="(batch, *space, features); for one example, without a batch, batch_axes=0",
        )
    return counted(layer, x, layer.batch_axes, layer.scale, layer.bias, fix=BATCH_AXES), tuple(range(start, stop))
