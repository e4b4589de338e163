"""Shared by all norms: the base class `Normalizer`, and functions that pass a norm's attributes to the ops.

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

from collections.abc import Callable, Sequence
from typing import Any

import jax
from weft.modules import ops
from weft.nnx.modules.module import Module
from weft.nnx.nn import initializers
from weft.nnx.nn.construct import value_of
from weft.nnx.nn.dtypes import as_promotion
from weft.nnx.variable.kinds import Param

Axes = int | Sequence[int]

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
