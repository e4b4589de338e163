"""Activations: JAX's own, and `PReLU`, which has a parameter."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType as MappingProxyType  # libraries replace this name of flax's module
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import (
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_silu,
    hard_swish,
    hard_tanh,
    identity,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    logsumexp,
    one_hot,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    soft_sign,
    softmax,
    softplus,
    standardize,
    swish,
)
from jax.numpy import tanh
from weft.modules import ops
from weft.nnx.modules.module import Module
from weft.nnx.nn import dtypes
from weft.nnx.nn.construct import NO_METADATA, Metadata
from weft.nnx.nn.dtypes import as_promotion
from weft.nnx.types import Array as Array
from weft.nnx.types import Dtype as Dtype
from weft.nnx.variable.kinds import Param

__all__ = [
    "PReLU",
    "celu",
    "elu",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "identity",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "logsumexp",
    "one_hot",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "standardize",
    "swish",
    "tanh",
]


class PReLU(Module):
    """A rectifier with a learned slope for negative values.

    Args:
        negative_slope_init: the slope before training.
        dtype: the dtype to compute in; by default the input's.
        param_dtype: the dtype of the slope.
        promote_dtype: casts `(inputs, negative_slope)` to one dtype, given `dtype`.
        negative_slope_metadata: metadata of the slope.

    >>> PReLU(0.5)(jnp.array([-2.0, 2.0])).tolist()
    [-1.0, 2.0]

    Source: He et al., "Delving Deep into Rectifiers", 2015.
    """

    def __init__(
        self,
        negative_slope_init: float = 0.01,
        *,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        negative_slope_metadata: Metadata = NO_METADATA,
    ):
        # The slope starts as a constant, so no key is drawn and the constructor has no `rngs`, as in flax.
        self.negative_slope = Param(jnp.asarray(negative_slope_init, dtype=param_dtype), **negative_slope_metadata)
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.promote_dtype = promote_dtype

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Applies the rectifier to each element."""
        promote = as_promotion(self.promote_dtype)
        return ops.prelu(inputs, self.negative_slope[...], dtype=self.dtype, promote=promote)
