"""Linear maps over any axes: the pure ops `linear_general` and `einsum`."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float
from weft.modules.construct import ConfigError
from weft.modules.dense.linear import product_options
from weft.modules.dtypes import cast, promote
from weft.modules.op import op

_ELLIPSIS = "..."


@op("axes", "batch_axes", "dtype", "out_dtype", "precision", "dot_general", "out_sharding", "promote")
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
        batch_axes: the leading axes of `x` with kernels of their own.
        dtype, out_dtype, precision, dot_general, out_sharding, promote: as in `linear`.

    >>> linear_general(jnp.ones((5, 2, 3)), jnp.ones((2, 3, 4)), axes=(1, -1)).shape
    (5, 4)
    """
    x, kernel, bias = promote(x, kernel, bias, dtype=dtype)
    contracted = tuple(sorted(range(x.ndim)[axis] for axis in axes))
    batch = tuple(sorted(range(x.ndim)[axis] for axis in batch_axes))
    features = len(batch) + len(contracted)
    dimensions = ((contracted, tuple(range(len(batch), features))), (batch, tuple(range(len(batch)))))
    y = dot_general(x, kernel, dimensions, precision=precision, **product_options(out_dtype, out_sharding))
    if bias is None:
        return y
    kept = [x.shape[axis] if axis in batch else 1 for axis in range(x.ndim) if axis not in contracted]
    return _plus(y, lax.reshape(bias, (*kept, *kernel.shape[features:])))


def _plus(y: Array, bias: Array) -> Array:
    dtype = jnp.promote_types(y.dtype, bias.dtype)
    return jnp.add(cast(y, dtype), cast(bias, dtype))


@op("equation", "dtype", "out_dtype", "precision", "product", "out_sharding", "promote")
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
    """An input and a kernel by an Einstein summation.

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
    y = product(equation, x, kernel, precision=precision, **product_options(out_dtype, out_sharding))
    return y if bias is None else _plus(y, jnp.reshape(bias, bias_shape(equation, x.ndim, kernel.shape)))


def check_equation(equation: str) -> str:
    """An equation of `einsum` without its spaces.

    Raises:
        ConfigError: if it has no explicit output, or not two operands.

    >>> check_equation("bi, ij -> bj")
    'bi,ij->bj'
    """
    equation = equation.replace(" ", "")
    if "->" not in equation:
        raise ConfigError(f"the equation {equation!r} has no output", fix='write one, as in "bi,ij->bj"')
    if equation.count(",") != 1:
        raise ConfigError(
            f"the equation {equation!r} has {equation.count(',') + 1} operands", fix="write two: the input, the kernel"
        )
    return equation


def bias_shape(equation: str, x_rank: int, kernel_shape: Sequence[int]) -> tuple[int, ...]:
    """The shape that a bias broadcasts in: the kernel's size along the output's axes that it has, else one.

    >>> bias_shape("...i,ij->...j", 3, (4, 5))
    (1, 1, 5)
    """
    operands, output = equation.split("->")
    first, second = operands.split(",")
    hidden = [_hidden(first, x_rank), _hidden(second, len(kernel_shape))]
    free = [letter for letter in string.printable if letter not in equation][: max(hidden)]
    sizes = dict(zip(_spelled(second, free, hidden[1]), kernel_shape, strict=True))
    return tuple(sizes.get(label, 1) for label in _spelled(output, free, max(hidden)))


def _hidden(term: str, rank: int) -> int:
    """How many axes an ellipsis stands for."""
    return rank - len(term.replace(_ELLIPSIS, "")) if _ELLIPSIS in term else 0


def _spelled(term: str, free: list[str], hidden: int) -> str:
    """A term with letters for its ellipsis, aligned at the end."""
    return term.replace(_ELLIPSIS, "".join(free[len(free) - hidden :]))
