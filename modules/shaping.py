"""Identity and Flatten: layers that compute nothing, for chains, or in the place of another layer."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped
from weft.core.errors import AxisError
from weft.core.records.module import Module, static
from weft.modules.batches import counted

T = TypeVar("T")


class Identity(Module):
    """Returns its input unchanged, for example in the place of a layer that is switched off.

    >>> Identity()(jnp.ones(2)).tolist()
    [1.0, 1.0]
    """

    def __call__(self, x: T) -> T:
        """Returns `x`."""
        return x


class Flatten(Module):  # weft: skip(two numbers decide the shapes)
    """Joins neighbouring axes into one, as between a convolution and a `Linear`.

    Args:
        start: the first axis that is joined; by default all but a batch's are. For one example, under `vmap`, it is 0;
            counted from the end, as -3 for images, it holds for both. With a positive number the layer refuses a `vmap`
            over the batch.
        end: the last axis that is joined.

    Raises (when it is called):
        AxisError: if the array does not have the axes, or `start` comes after `end`.

    >>> Flatten()(jnp.ones((8, 2, 3, 4))).shape, Flatten(-3, -2)(jnp.ones((8, 2, 3, 4))).shape
    ((8, 24), (8, 6, 4))

    Source: `torch.nn.Flatten`.
    """

    start: int = static()
    end: int = static()

    def __init__(self, start: int = 1, end: int = -1):
        self.start, self.end = start, end

    def __call__(self, x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """Joins the axes."""
        rank = jnp.ndim(x)
        exist = all(-rank <= axis < rank for axis in (self.start, self.end))
        if not exist or self.start % rank > self.end % rank:
            raise AxisError(
                f"Flatten joins the axes from {self.start} to {self.end}, which an array of {rank} axes does not have",
                at=f"x: {jax.typeof(x)}",
                fix="for one example, as under vmap, Flatten(0)",
            )
        # Checked before this line: `%` would turn an axis that does not exist into one that does.
        start, end = self.start % rank, self.end % rank
        x = counted(
            self, x, self.start, fix="Flatten(0) of one example, or Flatten(-3) of images with a batch or without"
        )
        return jax.lax.collapse(x, start, end + 1)
