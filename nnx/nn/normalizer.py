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
    learned = next((value for value in norm._learned() if value is not None), None)
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

    def _learned(self) -> tuple[jax.Array | None, jax.Array | None]:
        """Scale and bias, of which some norms have but one."""
        return value_of(self.scale), value_of(getattr(self, "bias", None))

    def _options(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "dtype": self.dtype,
            "axis_name": self.axis_name,
            "axis_index_groups": self.axis_index_groups,
            "use_fast_variance": self.use_fast_variance,
            "promote": as_promotion(self.promote_dtype),
        }

    def _norm(self, x: jax.Array, mask: jax.Array | None, axes: Axes, feature_axes: Axes, **options: Any) -> jax.Array:
        options = {"axes": axes, "feature_axes": feature_axes, **options, **self._options()}
        return ops.norm(x, *self._learned(), mask, **options)
