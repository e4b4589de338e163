"""Linear maps over any axes: the pure ops `linear_general` and `einsum`, the records `LinearGeneral` and `Einsum`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers
from jaxtyping import Array, Float
from weft.core.errors import AxisError
from weft.core.records.module import Module, static
from weft.modules.construct import ConfigError, Initializer, KeyLike, check_positive, option_dtype
from weft.modules.dense.linear import default_kernel_init, product_of, product_options
from weft.modules.drawing import draw
from weft.modules.dtypes import cast, promote
from weft.modules.explicit import einsum_sharding, laid_like, names_of_axes
from weft.modules.op import kept_options, op


@op
def linear_general(  # weft: skip(the axes decide the shapes)
    x: Float[Array, "*shape"],
    kernel: Float[Array, "..."],
    bias: Float[Array, "..."] | None = None,
    *,
    axes: Sequence[int],
    batch_axes: Sequence[int] = (),
    dtype: Any = None,
    out_dtype: Any = None,
    precision: Any = None,
    dot_general: Any = lax.dot_general,
    out_sharding: Any = None,
    promote: Any = promote,
) -> Float[Array, "..."]:
    """Contracts axes of the input with a kernel, one kernel for each index of the batch axes.

    Args:
        x: inputs.
        kernel: weights: the batch axes, the contracted axes in the order they have in `x`, and the output's features.
        bias: added at the end, if given: the batch axes and the output's features.
        axes: the axes of `x` to contract.
        batch_axes: the axes of `x` with kernels of their own; the output has them first.
        dtype, out_dtype, precision, dot_general, out_sharding, promote: as in `linear`.

    >>> linear_general(jnp.ones((5, 2, 3)), jnp.ones((2, 3, 4)), axes=(1, -1)).shape
    (5, 4)
    """
    x, kernel, bias = promote(x, kernel, bias, dtype=dtype)
    contracted = tuple(sorted(range(x.ndim)[axis] for axis in axes))
    batch = tuple(sorted(range(x.ndim)[axis] for axis in batch_axes))
    features = len(batch) + len(contracted)
    dimensions = ((contracted, tuple(range(len(batch), features))), (batch, tuple(range(len(batch)))))
    options = product_options(out_dtype, out_sharding)
    y = product_of(dot_general, x, kernel, dimensions, precision=precision, **options)
    if bias is None:
        return y
    # The product has the batch axes first, wherever they are in `x`.
    bias_axes = [x.shape[axis] for axis in batch] + [1] * (x.ndim - features)
    return _plus(y, jnp.reshape(bias, (*bias_axes, *kernel.shape[features:])))


def _plus(y: Array, bias: Array) -> Array:
    dtype = jnp.promote_types(y.dtype, bias.dtype)
    return jnp.add(cast(y, dtype), cast(laid_like(bias, y), dtype))


@op
def einsum(  # weft: skip(the equation decides the shapes)
    x: Float[Array, "..."],
    kernel: Float[Array, "..."],
    bias: Float[Array, "..."] | None = None,
    *,
    equation: str,
    dtype: Any = None,
    out_dtype: Any = None,
    precision: Any = None,
    product: Any = jnp.einsum,
    out_sharding: Any = None,
    promote: Any = promote,
) -> Float[Array, "..."]:
    """Multiplies an input with a kernel by an Einstein summation.

    Args:
        x: inputs, the equation's first operand.
        kernel: weights, its second.
        bias: added at the end, if given, along the axes that the output has from the kernel.
        equation: two operands and an explicit output, such as `"...i,ij->...j"`.
        product: the summation, with the arguments of `jax.numpy.einsum`.
        dtype, out_dtype, precision, out_sharding, promote: as in `linear`.

    >>> einsum(jnp.ones((5, 2)), jnp.ones((2, 3)), jnp.ones(3), equation="bi,ij->bj").shape
    (5, 3)
    """
    x, kernel, bias = promote(x, kernel, bias, dtype=dtype)
    if out_sharding is None and product is jnp.einsum:
        out_sharding = einsum_sharding(equation, x, kernel)
    y = product(equation, x, kernel, precision=precision, **product_options(out_dtype, out_sharding))
    return y if bias is None else _plus(y, jnp.reshape(bias, bias_shape(equation, x.ndim, kernel.shape)))


def check_equation(equation: str) -> str:
    """Checks an equation of `einsum`, and returns it without spaces.

    Raises:
        ConfigError: if it has no explicit output, or not two operands.

    >>> check_equation("bi, ij -> bj")
    'bi,ij->bj'
    """
    equation = equation.replace(" ", "")
    if "->" not in equation:
        raise ConfigError(
            f"the equation must be explicit: the equation {equation!r} has no output",
            fix='write one, as in "bi,ij->bj"',
        )
    if equation.count(",") != 1:
        raise ConfigError(
            f"the equation {equation!r} has {equation.count(',') + 1} operands, and must have exactly two operands",
            fix="write two: the input, the kernel",
        )
    return equation


def bias_shape(equation: str, x_rank: int, kernel_shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape to broadcast a bias: the kernel's size on output axes that come from the kernel, else one.

    >>> bias_shape("...i,ij->...j", 3, (4, 5))
    (1, 1, 5)
    """
    names = names_of_axes(equation, x_rank, len(kernel_shape))
    sizes = dict(zip(names.kernel, kernel_shape, strict=True))
    return tuple(sizes.get(name, 1) for name in names.output)


def _fits(term: str, rank: int) -> bool:
    """Whether an array of this rank has the axes of a term."""
    letters = len(term.replace("...", ""))
    return rank >= letters if "..." in term else rank == letters


class LinearGeneral(Module):  # weft: skip(the axes decide the shapes)
    """A linear map of any axes to any number of new ones, which come last.

    Args:
        in_features: sizes of the axes to map.
        out_features: sizes of the new axes.
        axes: the axes to map.
        batch: sizes of the leading axes along which each index has parameters of its own.
        key: a typed key, for the parameters.
        use_bias: whether to add a bias.
        kernel_init, bias_init: initialisers from `jax.nn.initializers`; they see a matrix and a vector.
        dtype: the dtype to compute in; by default what input and parameters promote to.
        param_dtype: the dtype of the parameters.
        out_dtype: the dtype to accumulate and return.
        precision: see `jax.lax.Precision`.

    Raises:
        ConfigError: if there are not as many `axes` as `in_features`.

    >>> layer = LinearGeneral((2, 3), (4, 5), axes=(1, -1), key=jax.random.key(0))
    >>> layer.kernel.shape, layer(jnp.ones((16, 2, 3))).shape
    ((2, 3, 4, 5), (16, 4, 5))
    """

    kernel: Float[Array, "*batch_in_out"]
    bias: Float[Array, "*batch_out"] | None
    in_features: tuple[int, ...] = static()
    axes: tuple[int, ...] = static()
    batch: tuple[int, ...] = static()
    dtype: Any = static()
    out_dtype: Any = static()
    precision: Any = static()

    def __init__(
        self,
        in_features: int | Sequence[int],
        out_features: int | Sequence[int],
        *,
        key: KeyLike,
        axes: int | Sequence[int] = -1,
        batch: int | Sequence[int] = (),
        use_bias: bool = True,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = initializers.zeros,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        out_dtype: Any = None,
        precision: Any = None,
    ):
        inputs, outputs, axes, batch = (_sizes(value) for value in (in_features, out_features, axes, batch))
        sizes = {"in_features": inputs, "out_features": outputs, "batch": batch}
        check_positive("LinearGeneral", **{name: min(values, default=1) for name, values in sizes.items()})
        if len(inputs) != len(axes):
            raise ConfigError(
                f"LinearGeneral maps {len(axes)} axes, but in_features has {len(inputs)} sizes",
                at=f"in_features={inputs}, axes={axes}",
            )
        # Initialisers compute fan-in and fan-out from two axes. The kernel's own axes would give a wrong variance.
        matrix = (math.prod(batch) * math.prod(inputs), math.prod(outputs))
        vector = (bias_init, (math.prod(batch) * math.prod(outputs),), param_dtype) if use_bias else None
        kernel, bias = draw(key, "LinearGeneral", (kernel_init, matrix, param_dtype), vector)
        self.kernel = kernel.reshape(*batch, *inputs, *outputs)
        self.bias = None if bias is None else bias.reshape(*batch, *outputs)
        self.in_features, self.axes, self.batch = inputs, axes, batch
        self.dtype, self.out_dtype, self.precision = option_dtype(dtype), option_dtype(out_dtype), precision

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Maps the axes.

        Raises:
            AxisError: if one of them, or of the batch, is not there or of another size.
        """
        shape = jnp.shape(x)
        # Checked by axis, because XLA's error about a product names neither the layer nor the axis of the input.
        wanted = [*zip(self.axes, self.in_features, strict=True), *enumerate(self.batch)]
        wrong = [axis for axis, size in wanted if not -len(shape) <= axis < len(shape) or shape[axis] != size]
        if wrong:
            raise AxisError(
                f"LinearGeneral takes axes of these sizes: {', '.join(f'{axis}: {size}' for axis, size in wanted)}",
                at=f"x: {jax.typeof(x)}, axes {wrong}",
                fix="check the output of the layer before, or this layer's sizes",
            )
        options = kept_options(self, linear_general)
        return linear_general(x, self.kernel, self.bias, batch_axes=tuple(range(len(self.batch))), **options)


def _sizes(value: int | Sequence[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


class Einsum(Module):  # weft: skip(the equation decides the shapes)
    """An Einstein summation with a learned second operand.

    Args:
        equation: two operands and an explicit output, such as `"...i,ij->...j"`.
        kernel_shape: shape of the second operand.
        key: a typed key, for the parameters.
        use_bias: whether to add a bias, along the axes that the output has from the kernel.
        others: as in `LinearGeneral`.

    Raises:
        ConfigError: if the equation has no output or not two operands, or its second operand not the kernel's rank.

    >>> layer = Einsum("nta,hab->nthb", (8, 2, 4), key=jax.random.key(0))
    >>> layer(jnp.ones((3, 5, 2))).shape, layer.bias.shape
    ((3, 5, 8, 4), (8, 4))
    """

    kernel: Float[Array, "*kernel_shape"]
    bias: Float[Array, "*bias_shape"] | None
    equation: str = static()
    dtype: Any = static()
    out_dtype: Any = static()
    precision: Any = static()

    def __init__(
        self,
        equation: str,
        kernel_shape: Sequence[int],
        *,
        key: KeyLike,
        use_bias: bool = True,
        kernel_init: Initializer = default_kernel_init,
        bias_init: Initializer = initializers.zeros,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        out_dtype: Any = None,
        precision: Any = None,
    ):
        self.equation, kernel_shape = check_equation(equation), tuple(kernel_shape)
        check_positive("Einsum", kernel_shape=min(kernel_shape, default=1))
        first, second = self.equation.split("->")[0].split(",")
        if not _fits(second, len(kernel_shape)):
            raise ConfigError(
                f"Einsum: kernel_shape={kernel_shape} and the second operand of {self.equation!r} "
                "differ in their number of axes"
            )
        # The input's rank is not known yet. Its ellipsis gives the output axes that the kernel lacks, so any will do.
        names = names_of_axes(self.equation, len(first.replace("...", "")), len(kernel_shape))
        sizes = dict(zip(names.kernel, kernel_shape, strict=True))
        shape = tuple(sizes[name] for name in names.output if name in sizes)
        bias = (bias_init, shape, param_dtype) if use_bias else None
        self.kernel, self.bias = draw(key, "Einsum", (kernel_init, kernel_shape, param_dtype), bias)
        self.dtype, self.out_dtype, self.precision = option_dtype(dtype), option_dtype(out_dtype), precision

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Sums.

        Raises:
            AxisError: if `x` has not the equation's number of axes, or not the kernel's size under one of its letters.
        """
        first = self.equation.split(",")[0]
        if not _fits(first, jnp.ndim(x)):
            raise AxisError(
                f"Einsum takes inputs with the axes {first!r} of {self.equation!r}",
                at=f"x: {jax.typeof(x)}",
                fix="check the output of the layer before; an ellipsis stands for any leading axes",
            )
        names = names_of_axes(self.equation, jnp.ndim(x), self.kernel.ndim)
        # Axes under an ellipsis broadcast, so only those under a letter must agree.
        kernel = zip(names.kernel, self.kernel.shape, strict=True)
        sizes = {name: size for name, size in kernel if isinstance(name, str)}
        wrong = [
            f"{name}: {size} in x, {sizes[name]} in the kernel"
            for name, size in zip(names.x, jnp.shape(x), strict=True)
            if name in sizes and size != sizes[name]
        ]
        if wrong:
            raise AxisError(
                f"Einsum: the sizes in {self.equation!r} differ",
                at=[*wrong, f"x: {jax.typeof(x)}, kernel: {jax.typeof(self.kernel)}"],
                fix="check the output of the layer before, or the kernel_shape",
            )
        return einsum(x, self.kernel, self.bias, **kept_options(self, einsum))
