"""Normalisation layers: the records `BatchNorm`, `LayerNorm` and `RMSNorm` (their maths is in `moments`)."""

from __future__ import annotations

from typing import Annotated, Any, Self, TypedDict

import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Bool, Float
from weft.core.records.kinds import BatchStat
from weft.core.records.module import Module, static
from weft.modules.batches import counted
from weft.modules.construct import Initializer, KeyLike, SharedConstructor, check_features, check_positive, option_dtype
from weft.modules.drawing import draw
from weft.modules.norms.moments import batch_norm, check_bound, check_several, norm
from weft.modules.op import hashable, kept_options


def affine_parameters(layer: str, features: int, inits: tuple[Any, Any], param_dtype: Any, key: Any) -> list[Any]:
    """Makes the scale and bias of a norm from their initialisers, each of which may be None; those that draw nothing
    need no key."""
    check_positive(layer, features=features)
    wanted = (None if init is None else (init, (features,), param_dtype) for init in inits)
    return draw(key, layer, *wanted, keyless=True)


_ONE_EXAMPLE = (
    'under vmap, name the mapped axis in both: BatchNorm(..., axis_name="batch") and vmap(..., axis_name="batch"); or '
    "give it a whole batch, of more than one example, without vmap; or use inference mode"
)


class BatchNorm(Module):
    """Normalises each feature over the batch, and keeps running statistics: `y, bn = bn(x)`.

    Each call returns a successor. In training mode the successor has the updated running statistics (kind `BatchStat`).
    In inference mode the layer normalises by them, and the successor is the record itself.

    The batch is every axis but the last. For a model written for one example, name the axis that `vmap` maps:
    `BatchNorm(8, axis_name="batch")`.

    Args:
        features: size of the last axis.
        momentum: the share of the running statistics that is kept at each step.
        epsilon: added to the variance.
        use_scale, use_bias: whether to learn them.
        scale_init, bias_init: initialisers from `jax.nn.initializers`.
        dtype: the dtype of the result; by default what input and parameters promote to.
        param_dtype: the dtype of scale and bias. The statistics are float32.
        axis_name: a named axis to average over as well.
        axis_index_groups: groups of the axis's indices that are averaged separately.
        use_fast_variance: see `moments`.
        inference: the mode; `weft.inference_mode(model)` sets it in a whole model.
        key: only for initialisers that draw.

    Raises:
        ConfigError: for features that are no positive integer.

    >>> bn = BatchNorm(2, momentum=0.5)
    >>> y, bn = bn(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> bn.mean.tolist()
    [1.0, 1.5]

    Source: Ioffe and Szegedy, "Batch Normalization", 2015.
    """

    scale: Float[Array, "features"] | None
    bias: Float[Array, "features"] | None
    mean: Annotated[Float[Array, "features"], BatchStat]
    var: Annotated[Float[Array, "features"], BatchStat]
    momentum: float = static()
    epsilon: float = static()
    dtype: Any = static()
    axis_name: Any = static()
    axis_index_groups: Any = static()
    use_fast_variance: bool = static()
    inference: bool = static()

    def __init__(
        self,
        features: int,
        *,
        momentum: float = 0.99,
        epsilon: float = 1e-5,
        use_scale: bool = True,
        use_bias: bool = True,
        scale_init: Initializer = initializers.ones,
        bias_init: Initializer = initializers.zeros,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        axis_name: Any = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        inference: bool = False,
        key: KeyLike | None = None,
    ):
        inits = scale_init if use_scale else None, bias_init if use_bias else None
        self.scale, self.bias = affine_parameters("BatchNorm", features, inits, param_dtype, key)
        # float32 whatever `param_dtype` says: a step of 1% of a bfloat16 statistic may round to no step at all.
        self.mean, self.var = jnp.zeros(features, jnp.float32), jnp.ones(features, jnp.float32)
        self.momentum, self.epsilon, self.dtype = momentum, epsilon, option_dtype(dtype)
        self.axis_name, self.axis_index_groups = axis_name, hashable(axis_index_groups)
        self.use_fast_variance, self.inference = use_fast_variance, inference

    def __call__(
        self, x: Float[Array, "*batch features"], *, inference: bool | None = None, mask: Bool[Array, ...] | None = None
    ) -> tuple[Float[Array, "*batch features"], Self]:
        """Normalises a batch, and returns the result with the successor.

        Args:
            x: the batch.
            inference: this call's mode, if it is not the record's own.
            mask: which values count for the statistics; broadcasts against `x`.

        Raises:
            AxisError: if the last axis is not of size `features`, nothing around binds `axis_name`, or there is one
                value for each feature while training, of which nothing would be left.
        """
        check_features(self, x, self.mean.shape[-1])
        training = not (self.inference if inference is None else inference)
        # All axes but the features: time and space count as more examples of the batch.
        axes = tuple(range(jnp.ndim(x) - 1))
        if training:
            # Checked here and not in the op, whose error could not name the layer. Inference averages over nothing.
            if self.axis_name is not None:
                check_bound(self.axis_name, "BatchNorm")
            check_several(x, axes, self.axis_name, self.axis_index_groups, "BatchNorm", fix=_ONE_EXAMPLE)
            own = self.scale, self.bias, self.mean, self.var
            x = counted(self, x, int(self.axis_name is None), *own, fix=_ONE_EXAMPLE)
        options: dict[str, Any] = {**kept_options(self, batch_norm), "promote_statistics": False}
        options |= {} if training else {"momentum": None}
        y, mean, var = batch_norm(x, self.mean, self.var, self.scale, self.bias, mask, axes=axes, **options)
        # A pair in both modes: if inference returned `y` alone, a switch of modes would change what each caller has to
        # unpack.
        return y, self.replace(mean=mean, var=var) if training else self


class NormOptions(TypedDict, total=False):
    """The options that the norms over single examples share."""

    epsilon: float
    use_scale: bool
    use_bias: bool
    scale_init: Initializer
    bias_init: Initializer
    dtype: Any
    param_dtype: Any
    use_fast_variance: bool
    key: KeyLike | None


class FeatureNorm(SharedConstructor):
    """Base of `LayerNorm`, `GroupNorm` and `InstanceNorm`: a scale and a bias for each feature, and options."""

    scale: Float[Array, "features"] | None
    bias: Float[Array, "features"] | None
    features: int = static()
    epsilon: float = static()
    dtype: Any = static()
    use_fast_variance: bool = static()

    def __init__(
        self,
        features: int,
        *,
        epsilon: float = 1e-6,
        use_scale: bool = True,
        use_bias: bool = True,
        scale_init: Initializer = initializers.ones,
        bias_init: Initializer = initializers.zeros,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        use_fast_variance: bool = True,
        key: KeyLike | None = None,
    ):
        inits = scale_init if use_scale else None, bias_init if use_bias else None
        self.scale, self.bias = affine_parameters(type(self).__name__, features, inits, param_dtype, key)
        self.features, self.epsilon, self.dtype = features, epsilon, option_dtype(dtype)
        self.use_fast_variance = use_fast_variance


class LayerNorm(FeatureNorm, init=False):
    """Normalises each example over its features, the last axis.

    Args:
        features: size of the last axis.
        epsilon: added to the variance.
        use_scale, use_bias: whether to learn them.
        scale_init, bias_init: initialisers from `jax.nn.initializers`.
        dtype: the dtype of the result; by default what input and parameters promote to.
        param_dtype: the dtype of scale and bias.
        use_fast_variance: see `moments`.
        key: only for initialisers that draw.

    Raises:
        ConfigError: for features that are no positive integer.

    >>> LayerNorm(2, epsilon=0.0)(jnp.array([1.0, 3.0])).tolist()
    [-1.0, 1.0]

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """

    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
        """Normalises the last axis.

        Raises:
            AxisError: if its size is not `features`.
        """
        check_features(self, x, self.features)
        return norm(x, self.scale, self.bias, **kept_options(self, norm))


class RMSNorm(Module):
    """Divides each example by the root mean square of its features, the last axis.

    Args:
        features: size of the last axis.
        epsilon: added to the mean square.
        use_scale: whether to learn a scale.
        scale_init: initialiser from `jax.nn.initializers`.
        dtype: the dtype of the result; by default what input and parameters promote to.
        param_dtype: the dtype of the scale.
        key: only for an initialiser that draws.

    Raises:
        ConfigError: for features that are no positive integer.

    >>> RMSNorm(2, epsilon=0.0)(jnp.array([7.0, 1.0])).tolist()
    [1.399999976158142, 0.20000000298023224]

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """

    scale: Float[Array, "features"] | None
    features: int = static()
    epsilon: float = static()
    dtype: Any = static()

    def __init__(
        self,
        features: int,
        *,
        epsilon: float = 1e-6,
        use_scale: bool = True,
        scale_init: Initializer = initializers.ones,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        key: KeyLike | None = None,
    ):
        inits = scale_init if use_scale else None, None
        self.scale, _ = affine_parameters("RMSNorm", features, inits, param_dtype, key)
        self.features, self.epsilon, self.dtype = features, epsilon, option_dtype(dtype)

    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
        """Scales the last axis.

        Raises:
            AxisError: if its size is not `features`.
        """
        check_features(self, x, self.features)
        return norm(x, self.scale, epsilon=self.epsilon, dtype=self.dtype, use_mean=False)
