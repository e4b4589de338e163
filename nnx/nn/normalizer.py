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

from collections.abc import Callable
from typing import Any

import jax
from weft.nnx.kinds import Param
from weft.nnx.module import Module
from weft.nnx.nn import initializers
from weft.nnx.nn.dtypes import as_promotion

zeros, ones = initializers.zeros_init(), initializers.ones_init()


def features_of_norm(norm: Any) -> dict[int, int]:
    """The features of a norm, by their axis; none where several axes share them."""
    axes = getattr(norm, "feature_axes", getattr(norm, "axis", -1))
    learned = norm.scale if norm.scale is not None else norm.bias
    return {axes: learned.shape[0]} if isinstance(axes, int) and learned is not None else {}


class Normalizer(Module):
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
