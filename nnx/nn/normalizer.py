"""What the normalising layers share: the class `Normalizer`, and arguments.

These arguments are the same in all:

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
from weft.modules import ops
from weft.nnx.modules.module import Module
from weft.nnx.nn import initializers
from weft.nnx.nn.construct import value_of
from weft.nnx.nn.dtypes import as_promotion
from weft.nnx.variable.kinds import Param

Axes = int | Sequence[int]

zeros, ones = initializers.zeros_init(), initializers.ones_init()


def features_of_norm(norm: Any) -> dict[int, int]:
    """The features of a norm, by their axis; none where several axes share them."""
    axes = getattr(norm, "feature_axes", getattr(norm, "axis", -1))
    learned = next((value for value in learned_of_norm(norm) if value is not None), None)
    return {axes: learned.shape[0]} if isinstance(axes, int) and learned is not None else {}


class Normalizer(Module):
    """What norms keep, and hand to the ops; but `RMSNorm` has no bias, and `GroupNorm` does not keep `num_features`."""

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
    """Scale and bias, of which some norms have but one."""
    return value_of(norm.scale), value_of(getattr(norm, "bias", None))


def norm_options(norm: Any) -> dict[str, Any]:
    """A norm's options that all norms' ops take."""
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
    """An input normalised by its own moments, as a norm's options say."""
    options = {"axes": axes, "feature_axes": feature_axes, **options, **norm_options(norm)}
    return ops.norm(x, *learned_of_norm(norm), mask, **options)
