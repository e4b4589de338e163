"""Weights in eight bits: `QuantizedLinear`, and `quantize`, which replaces the linear layers of a model by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int8
from weft.core.records.filters import Filter
from weft.core.records.kinds import Buffer
from weft.core.records.module import Module, static
from weft.core.records.surgery import at
from weft.modules.construct import check_features
from weft.modules.dense.linear import Linear
from weft.modules.dtypes import as_array, cast, promote
from weft.modules.explicit import laid_like, matmul
from weft.modules.op import op
from weft.transforms.mapping import vmap

M = TypeVar("M", bound=Module)
# -128 is not used, so that the range is the same on both sides of zero.
_LARGEST = 127


@op
def quantized(kernel: Float[Array, "in out"]) -> tuple[Int8[Array, "in out"], Float[Array, "out"]]:
    """Rounds a kernel to eight bits with one scale for each output feature: `kernel ≈ values * scale`.

    The largest weight of a feature becomes 127; rounding changes a weight by half a scale at most.

    >>> values, scale = quantized(jnp.array([[1.0], [-2.54]]))
    >>> values.ravel().tolist(), round(float(scale[0]), 4)
    ([50, -127], 0.02)
    """
    largest = jnp.max(jnp.abs(kernel), axis=0)
    # A feature whose weights are all zero would divide by zero; with the scale 1 it stays zero.
    scale = jnp.where(largest == 0, jnp.ones_like(largest), largest / _LARGEST)
    return jnp.round(kernel / scale[None, :]).astype(jnp.int8), scale


@op
def quantized_linear(
    x: Float[Array, "*batch in"],
    values: Int8[Array, "in out"],
    scale: Float[Array, "out"],
    bias: Float[Array, "out"] | None = None,
    *,
    dtype: Any = None,
) -> Float[Array, "*batch out"]:
    """`x @ (values * scale) + bias`; the scale is applied after the product, so the kernel is read in eight bits.

    Args:
        x: inputs.
        values, scale: as `quantized` gives them.
        bias: added at the end, if given.
        dtype: the dtype to compute in; by default what input and bias promote to.

    >>> quantized_linear(jnp.ones((1, 2)), jnp.array([[100], [27]], jnp.int8), jnp.array([0.5])).tolist()
    [[63.5]]
    """
    x, bias = promote(x, bias, dtype=dtype)
    y = matmul(x, values.astype(x.dtype))
    # In the wider of the two dtypes: a rounded scale would change all weights of its feature.
    y, scale = promote(y, scale, dtype=jnp.promote_types(y.dtype, scale.dtype))
    y = cast(y * laid_like(jnp.expand_dims(scale, range(x.ndim - 1)), y), x.dtype)
    return y if bias is None else y + laid_like(jnp.expand_dims(bias, range(x.ndim - 1)), y)


class QuantizedLinear(Module):
    """A linear map whose weights are integers of eight bits, with a scale for each output feature.

    Neither is learned: the scale is a `Buffer`. Gradients flow through to the input; the bias stays a parameter.

    Args:
        layer: the layer whose weights to take.

    >>> layer = QuantizedLinear(Linear(8, 4, key=jax.random.key(0)))
    >>> layer.kernel.dtype.name, layer(jnp.ones((2, 8))).shape
    ('int8', (2, 4))
    """

    __stands_for__ = Linear

    kernel: Int8[Array, "in out"]
    scale: Annotated[Float[Array, "out"], Buffer]
    bias: Float[Array, "out"] | None
    dtype: Any = static()
    out_dtype: Any = static()
    precision: Any = static()

    def __init__(self, layer: Linear):
        self.kernel, self.scale = quantized(layer.kernel)
        self.bias, self.dtype = layer.bias, layer.dtype
        self.out_dtype, self.precision = layer.out_dtype, layer.precision

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        """Maps the last axis.

        Raises:
            AxisError: if its size is not `in`.
        """
        check_features(self, x, self.kernel.shape[0])
        y = quantized_linear(as_array(x), self.kernel, self.scale, self.bias, dtype=self.dtype)
        return y if self.out_dtype is None else y.astype(self.out_dtype)

    def dequantized(self) -> Linear:
        """Returns the approximated layer, with its weights in floats.

        >>> layer = Linear(2, 3, key=jax.random.key(0))
        >>> near = quantize(layer).dequantized()
        >>> str(near.kernel.dtype), bool(jnp.allclose(near.kernel, layer.kernel, atol=1e-2))
        ('float32', True)
        """
        kernel, bias = self.kernel.astype(self.scale.dtype) * self.scale[None, :], self.bias
        return Linear(
            *kernel.shape,
            key=jax.random.key(0),  # nothing is drawn
            use_bias=bias is not None,
            kernel_init=lambda *_: kernel,
            bias_init=lambda *_: bias,
            dtype=self.dtype,
            out_dtype=self.out_dtype,
            precision=self.precision,
        )


def quantize(model: M, where: Filter = ...) -> M:  # weft: skip(of any model)
    """Returns a model with the weights of its linear layers in eight bits: a quarter of the memory of float32.

    Only weights are quantised; what flows through the model keeps its dtype. Give it a trained model: the weights are
    no parameters any more.

    Args:
        model: any record.
        where: selects the layers whose arrays all match this filter, such as `Not(PathContains("head"))`.

    Raises:
        FilterError: if no layer matches.

    >>> from weft.modules import MLP
    >>> model = quantize(MLP(8, 16, 4, key=jax.random.key(0)))
    >>> [type(layer).__name__ for layer in model[::2]]
    ['QuantizedLinear', 'QuantizedLinear']

    Source: Dettmers et al., "LLM.int8()", 2022, without its outliers: absmax by features.
    """
    return at(model, Linear, where).apply(lambda layer: for_each_copy(QuantizedLinear, layer))


def for_each_copy(make: Callable[..., Any], layer: Any, *args: Any) -> Any:
    """Calls a function of a linear layer; of a stack of them, for each layer, with its own part of the arguments."""
    for _ in range(layer.kernel.ndim - 2):
        make = vmap(make)
    return make(layer, *args)
