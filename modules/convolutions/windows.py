"""Helpers that all convolutions share: batch axes, windows, the spellings of padding, and masks of kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypedDict

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Shaped
from weft.modules.construct import ConfigError, Initializer, check_space
from weft.modules.dense.linear import add_bias

PADDINGS = ("SAME", "VALID", "SAME_LOWER", "CIRCULAR", "REFLECT", "CAUSAL")
Padding = str | int | Sequence[int | tuple[int, int]]
PAD_MODES = {"CIRCULAR": "wrap", "REFLECT": "reflect"}


class WindowOptions(TypedDict, total=False):
    """The options that all layers of convolutions take."""

    strides: int | Sequence[int]
    padding: Padding
    kernel_dilation: int | Sequence[int]
    use_bias: bool
    mask: ArrayLike | None
    kernel_init: Initializer
    bias_init: Initializer
    dtype: Any
    param_dtype: Any
    out_dtype: Any
    precision: Any


class PaddingError(ConfigError, RuntimeError):
    """An unknown name of a padding, for which JAX raises `RuntimeError`."""


def one_batch_axis(  # weft: skip(the rank says which axes are space)
    x: Float[Array, "*batch_space features"], rank: int
) -> tuple[Float[Array, "..."], tuple[int, ...]]:
    """Joins the batch axes of an input to one, and returns the input with the sizes of the batch axes.

    Raises:
        AxisError: if there are fewer axes than `rank` of space and one of features.
    """
    check_space(x, rank)
    batch = x.shape[: x.ndim - rank - 1]
    return (x if len(batch) == 1 else jnp.reshape(x, (math.prod(batch), *x.shape[len(batch) :]))), batch


def biased(  # weft: skip(the batch axes are given as numbers)
    y: Float[Array, "n *space out"], bias: Float[Array, "out"] | None, batch: tuple[int, ...]
) -> Float[Array, "*batch_space out"]:
    """Adds the bias to the output of a convolution, and splits its batch axis again."""
    y = y if bias is None else add_bias(y, bias)
    return y if len(batch) == 1 else jnp.reshape(y, (*batch, *y.shape[1:]))


def dilated(window: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """Returns the extent of a dilated window on each axis.

    >>> dilated((3, 2), (1, 4))
    [3, 5]
    """
    return [(size - 1) * step + 1 for size, step in zip(window, dilation, strict=True)]


def padded(
    x: Float[Array, "n *space features"], padding: Padding, extent: Sequence[int]
) -> tuple[Float[Array, "n *padded features"], str | list[tuple[int, int]]]:
    """Pads an input by wrapping or reflection, which XLA cannot; returns it with the padding left for XLA."""
    pads = lax_padding(padding, extent)
    if not isinstance(pads, str) or pads not in PAD_MODES:
        return x, pads
    # As SAME divides an odd amount: the extra element is on the right.
    around = [(0, 0), *(((size - 1) // 2, size // 2) for size in extent), (0, 0)]
    return jnp.pad(x, around, mode=PAD_MODES[pads]), "VALID"


def channels_last(rank: int) -> lax.ConvDimensionNumbers:
    """The numbers of the axes of a convolution over `rank` spatial axes, features last in all operands.

    >>> channels_last(1).lhs_spec
    (0, 2, 1)
    """
    data = (0, rank + 1, *range(1, rank + 1))
    return lax.ConvDimensionNumbers(data, (rank + 1, rank, *range(rank)), data)


def lax_padding(
    padding: Padding, extent: Sequence[int], names: Sequence[str] = PADDINGS, of: str = ""
) -> str | list[tuple[int, int]]:
    """Returns a padding as pairs (low, high), or as a name whose amounts depend on the input's size.

    Args:
        padding: as in `conv`.
        extent: size of the dilated window on each spatial axis.
        names: the names that the caller knows.
        of: what it pads, for the error.

    Raises:
        PaddingError: for another name.
        ConfigError: for the wrong number of pairs, or causal padding of more than one axis.

    >>> lax_padding("CAUSAL", [3]), lax_padding(1, [3, 3]), lax_padding([1, (0, 2)], [3, 3])
    ([(2, 0)], [(1, 1), (1, 1)], [(1, 1), (0, 2)])
    """
    rank = len(extent)
    if isinstance(padding, str):
        if padding not in names:
            raise PaddingError(f"unknown padding {padding!r}{of}", fix=f"one of {', '.join(names)}, or numbers")
        if padding != "CAUSAL":
            return padding
        if rank != 1:
            raise ConfigError(
                f"Causal padding is only for 1D convolutions: causal padding is for one spatial axis, not {rank}",
                fix="give pairs (low, high)",
            )
        return [(extent[0] - 1, 0)]
    pads = (padding,) * rank if isinstance(padding, int) else padding
    if len(pads) != rank:
        raise ConfigError(
            f"Invalid padding format: padding has {len(pads)} entries for {rank} spatial axes: {tuple(pads)}"
        )
    return [(pad, pad) if isinstance(pad, int) else (pad[0], pad[1]) for pad in pads]


def kernel_mask(  # weft: skip(it refuses)
    layer: str, mask: ArrayLike | None, kernel: Float[Array, "*window group_in out"]
) -> Shaped[Array, "*window group_in out"] | None:
    """Converts the mask of a kernel to an array.

    Raises:
        ConfigError: if its shape is not the kernel's.
    """
    if mask is None:
        return None
    array = jnp.asarray(mask)
    if array.shape != kernel.shape:
        raise ConfigError(
            f"{layer}: the mask must have the shape of the kernel",
            at=f"mask: {array.shape}, kernel: {kernel.shape}",
            fix="jnp.broadcast_to(mask, kernel_shape)",
        )
    return array


def masked(
    kernel: Float[Array, "*window group_in out"], mask: Shaped[Array, "*window group_in out"] | None
) -> Float[Array, "*window group_in out"]:
    """Multiplies a kernel by its mask."""
    return kernel if mask is None else kernel * mask.astype(kernel.dtype)


def window_of(layer: str, kernel_size: Sequence[int]) -> tuple[int, ...]:
    """Returns the window of a layer whose number of spatial axes is the length of `kernel_size`.

    Raises:
        ConfigError: for one number.
    """
    # Annotated as a sequence, so that type checkers refuse one number too.
    sizes = as_sizes(kernel_size)
    if not isinstance(sizes, int):
        return sizes
    raise ConfigError(
        f"kernel_size={sizes} does not tell the number of spatial axes of {layer}",
        fix=f"{layer}2d(..., {sizes}) or {layer}(..., ({sizes}, {sizes})) for images; {layer}1d(..., {sizes}) or "
        f"{layer}(..., ({sizes},)) for sequences; {layer}3d for volumes",
    )


def as_sizes(kernel_size: int | Sequence[int]) -> int | tuple[int, ...]:
    """Converts the sizes of a window, which may be NumPy integers, to Python integers."""
    return int(kernel_size) if isinstance(kernel_size, int | np.integer) else tuple(map(int, kernel_size))
