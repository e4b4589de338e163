"""Upsampling: the pure ops `upsample` and `pixel_shuffle`, and the records `Upsample` and `PixelShuffle`."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft.core.errors import AxisError
from weft.core.records.module import Module, static
from weft.modules.construct import ConfigError, check_positive, check_space, per_axis
from weft.modules.op import op

_METHODS = ("nearest", "linear", "bilinear", "cubic", "bicubic", "lanczos3", "lanczos5")


@op("factors", "method")
def upsample(
    x: Float[Array, "*batch_space features"], factors: Sequence[int], *, method: str = "nearest"
) -> Float[Array, "*batch_out_space features"]:
    """Makes the spatial axes larger by whole factors.

    Args:
        x: images, their channels last.
        factors: by how much each spatial axis grows; the axes before them are of the batch.
        method: `"nearest"` repeats values; the others of `jax.image.resize`, such as `"bilinear"`, place values between
            them, with those of the edge beyond the edge. `"linear"` is for any number of axes.

    Raises:
        AxisError: if there are fewer axes than factors and one of features.

    >>> upsample(jnp.arange(2.0)[:, None], (2,))[:, 0].tolist()
    [0.0, 0.0, 1.0, 1.0]
    >>> upsample(jnp.arange(2.0)[:, None], (2,), method="linear")[:, 0].tolist()
    [0.0, 0.25, 0.75, 1.0]
    """
    check_space(x, len(factors))
    first = x.ndim - 1 - len(factors)
    # `jax.image.resize` computes nearest values by a gather; to repeat them is simpler and has a simpler gradient.
    if method == "nearest":
        for axis, factor in enumerate(factors, first):
            x = jnp.repeat(x, factor, axis)
        return x
    shape = list(x.shape)
    for axis, factor in enumerate(factors, first):
        shape[axis] *= factor
    return jax.image.resize(x, shape, method)


class Upsample(Module):
    """Makes images larger by whole factors; the function is `upsample`.

    Args:
        factors: by how much each spatial axis grows, such as `(2, 2)`.
        method: `"nearest"`, which repeats values, or how values lie between them: `"bilinear"`, or another of
            `jax.image.resize`.

    Raises:
        AxisError: when called, as `upsample`.
        ConfigError: if a factor is not a positive integer, or the method is not known.

    >>> Upsample((2, 2), method="bilinear")(jnp.ones((1, 4, 4, 3))).shape
    (1, 8, 8, 3)
    """

    factors: tuple[int, ...] = static()
    method: str = static()

    def __init__(self, factors: Sequence[int], *, method: str = "nearest"):
        if isinstance(factors, int) or not factors:
            raise ConfigError(
                f"Upsample: factors must be a tuple with one for each spatial axis, not {factors!r}",
                fix="(2, 2) for images",
            )
        if method not in _METHODS:
            raise ConfigError(f"Upsample: unknown method {method!r}", fix=f"one of {', '.join(_METHODS)}")
        self.factors, self.method = per_axis(factors, len(factors), "factors"), method

    def __call__(self, x: Float[Array, "*batch_space features"]) -> Float[Array, "*batch_out_space features"]:
        """Makes the spatial axes larger; leading batch axes are kept."""
        return upsample(x, self.factors, method=self.method)


@op("factor")
def pixel_shuffle(  # weft: skip(squares of a number have to divide the channels)
    x: Float[Array, "*batch height width channels"], factor: int
) -> Float[Array, "*batch out_height out_width out_channels"]:
    """Turns channels into space: each pixel becomes a square of `factor` by `factor`.

    Args:
        x: images, their channels last. As in PyTorch, a channel of the result takes `factor**2` neighbouring channels,
            row by row.
        factor: the side of the square.

    Raises:
        AxisError: if the channels do not divide into squares, or there are fewer than three axes.

    >>> pixel_shuffle(jnp.arange(4.0).reshape(1, 1, 4), 2)[..., 0].tolist()
    [[0.0, 1.0], [2.0, 3.0]]

    Source: Shi et al., "Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel Convolutional
    Neural Network", 2016.
    """
    check_space(x, 2)
    *batch, height, width, channels = x.shape
    # Nobody knows whether a symbolic size divides; an exported program is meant for sizes that do.
    if isinstance(channels, int) and channels % factor**2:
        raise AxisError(
            f"{channels} channels do not divide into squares of {factor} by {factor} pixels",
            at=f"x: {jax.typeof(x)}",
            fix=f"put the channels last, in a number that is divisible by {factor**2}",
        )
    squares = jnp.reshape(x, (*batch, height, width, channels // factor**2, factor, factor))
    n = len(batch)
    squares = jnp.transpose(squares, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return jnp.reshape(squares, (*batch, height * factor, width * factor, channels // factor**2))


class PixelShuffle(Module):
    """Turns channels into space: each pixel becomes a square of `factor` by `factor`; the function is `pixel_shuffle`.

    Args:
        factor: the side of the square.

    Raises:
        AxisError: when called, as `pixel_shuffle`.
        ConfigError: if the factor is not a positive integer.

    >>> PixelShuffle(2)(jnp.ones((8, 4, 4, 12))).shape
    (8, 8, 8, 3)

    Source: as of `pixel_shuffle`.
    """

    factor: int = static()

    def __init__(self, factor: int):
        check_positive("PixelShuffle", factor=factor)
        self.factor = factor

    def __call__(  # weft: skip(squares of a number have to divide the channels)
        self, x: Float[Array, "*batch height width channels"]
    ) -> Float[Array, "*batch out_height out_width out_channels"]:
        """Shuffles."""
        return pixel_shuffle(x, self.factor)
