"""Which axes of a layer's input are the batch's, for layers that treat each example as a whole.

`batch_axes` is the end of a slice: `x.shape[:batch_axes]` are the axes of the batch. 1 takes the first axis for the
batch, 0 none, and -3 all but the last three. Counted from the end, the rule is the same with `vmap` and without. A
count from the front is not: under a `vmap` over the batch the first axis is the height of an image, and layers
normalised each row by itself without a word. So such a layer refuses to be mapped over, whatever is between it and the
`vmap`. A `vmap` over models, which maps the layer's own arrays too, may give each of them a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from weft.core.edge import _jax
from weft.core.errors import AxisError
from weft.modules.construct import ConfigError, is_count

# The name of the axis of an `Ensemble` or `MoE`, whose members get batches. Layers without arrays of their own could
# not tell it from the axis of a batch.
MEMBERS = "members of a layer"

# What to do about `batch_axes`.
BATCH_AXES = "batch_axes=0 if a call gets one example, or minus the number of an example's axes, such as -3 for images"

_counted_p = _jax.new_primitive("counted_from_the_front", multiple_results=True)


def check_batch_axes(layer: str, batch_axes: Any) -> int:
    """Refuses what is no number of batch axes.

    Raises:
        ConfigError: naming the layer.
    """
    if not is_count(batch_axes) or batch_axes == -1:
        raise ConfigError(
            f"{layer}: batch_axes must be the number of leading batch axes, not {batch_axes!r}",
            fix="1 for a batch, 0 for one example, -3 for all axes but the last three",
        )
    return batch_axes


def batch_rank(layer: object, x: Any, batch_axes: int) -> int:
    """Returns how many leading axes of an input are the batch's.

    Raises:
        AxisError: if the input has fewer axes than an example, or than its batch.
    """
    rank = batch_axes if batch_axes >= 0 else jnp.ndim(x) + batch_axes
    if not 0 <= rank <= jnp.ndim(x):
        part = "an example" if batch_axes < 0 else "a batch"
        raise AxisError(
            f"{part} of a {type(layer).__qualname__} with batch_axes={batch_axes} has {abs(batch_axes)} axes",
            at=f"x: {jax.typeof(x)}",
        )
    return rank


def counted(layer: object, x: Any, count: int, *own: Any, fix: str) -> Any:
    """Returns an input whose first axes a layer takes for a batch: a `vmap` that maps it from outside raises.

    Args:
        layer: the layer.
        x: the input.
        count: how many axes are counted from the front; with 0 or less nothing is refused.
        own: the layer's arrays; a `vmap` that maps one of them as well maps over models, and is no mistake.
        fix: the ways out.

    Raises:
        AxisError: where the `vmap` meets the input.
    """
    if count <= 0 or not isinstance(x, Tracer):
        return x
    arrays = [array for array in own if array is not None]
    return _counted_p.bind(x, *arrays, layer=type(layer).__qualname__, fix=fix)[0]


def _batch(axis: _jax.Axis, values: Sequence[jax.Array], dims: Sequence[int | None], **params: Any) -> Any:
    if dims[0] is not None and all(dim is None for dim in dims[1:]) and axis.name != MEMBERS:
        raise AxisError(
            f"{params['layer']} takes leading axes of its input for the batch, and a vmap outside of it maps the batch",
            at=f"x: {jax.typeof(values[0])}, mapped on axis {dims[0]}",
            fix=params["fix"],
        )
    return _counted_p.bind(*values, **params), dims


_jax.define_identity(_counted_p, batch=_batch)
