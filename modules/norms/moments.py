"""Moments, and normalising by them: the pure ops `norm` and `batch_norm`.

Statistics are computed in float32 at least, whatever the dtype of the input. `moments` and `normalize` are the parts,
for norms over other axes; `norm` and `batch_norm` are the ops that records call. All of them use `jax.lax` on arrays
whose reduced axes have size one: this traces in a third of the time of `jax.numpy`'s broadcasting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float
from weft.core.errors import AxisError
from weft.modules.dtypes import as_array, cast, compute_dtype, promote
from weft.modules.explicit import laid_as, laid_like
from weft.modules.op import op

Axes = int | Sequence[int]


class UnboundAxisError(AxisError, NameError):
    """Raised for a named axis that no transform around the call binds; it is a `NameError`, as JAX raises."""


def check_bound(axis_name: Any, layer: str) -> None:
    """Refuses an axis name that no transform around the call binds.

    Raises:
        UnboundAxisError: names the layer and the axis.
    """
    for name in axis_name if isinstance(axis_name, tuple) else (axis_name,):
        try:
            lax.axis_size(name)
        except NameError:
            raise UnboundAxisError(
                f"{layer} averages over axis_name={axis_name!r}, but this call has an unbound axis name: {name}",
                fix=f"call it inside of vmap(..., axis_name={name!r}), or in inference mode, where it averages over "
                f"nothing; a {layer} of batches needs no axis_name",
            ) from None


def check_several(x: Any, axes: Sequence[int], axis_name: Any, axis_index_groups: Any, layer: str, *, fix: str) -> None:
    """Refuses to normalise single values: each would be its own mean, and come out as exactly zero.

    Args:
        x: the input.
        axes: the axes over which statistics are taken.
        axis_name, axis_index_groups: as in `moments`.
        layer: the name of the layer.
        fix: the ways out.

    Raises:
        AxisError: if there is one value for each mean, as far as sizes are known.
    """
    count = math.prod(x.shape[axis] for axis in axes)
    # A symbolic size is not known to be 1, and an exported program is meant for larger ones.
    if not isinstance(count, int) or count != 1:
        return
    if axis_name is not None:
        names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
        count = len(axis_index_groups[0]) if axis_index_groups else math.prod(map(lax.axis_size, names))
    if count == 1:
        raise AxisError(
            f"{layer} would normalise one value for each feature, and every result would be zero",
            at=f"x: {jax.typeof(x)}",
            fix=fix,
        )


def canonical_axes(axes: Axes, rank: int) -> tuple[int, ...]:
    """Converts axes to non-negative numbers.

    >>> canonical_axes((-1, 0), 3)
    (2, 0)
    """
    return tuple(range(rank)[axis] for axis in ((axes,) if isinstance(axes, int) else axes))


def moments(
    x: Float[Array, "*shape"],
    axes: Axes,
    *,
    dtype: Any = None,
    axis_name: Any = None,
    axis_index_groups: Any = None,
    use_mean: bool = True,
    use_fast_variance: bool = True,
    mask: Bool[Array, "*#shape"] | None = None,
) -> tuple[Float[Array, ...], Float[Array, ...]]:
    """Returns mean and variance over axes, and over the devices or examples of a named axis.

    Args:
        x: the values.
        axes: what to reduce; the results lack these axes.
        dtype: the least precise dtype to compute in; never below float32.
        axis_name: a `vmap`, `pmap` or `shard_map` axis to average over too.
        axis_index_groups: groups of indices of that axis that are averaged apart.
        use_mean: `False` takes the mean to be zero.
        use_fast_variance: as E[x²] - E[x]², in one pass, instead of E[(x - E[x])²].
        mask: which values count; broadcasts against `x`.

    Raises:
        UnboundAxisError: if nothing around binds `axis_name`.

    >>> mean, variance = moments(jnp.array([[1.0, 3.0], [2.0, 2.0]]), -1)
    >>> mean.tolist(), variance.tolist()
    ([2.0, 2.0], [1.0, 0.0])
    """
    if axis_name is not None:
        check_bound(axis_name, "moments")
    x = as_array(x)
    # float16 squares overflow at 256, and bfloat16 sums of many values stand still.
    x = cast(x, jnp.promote_types(dtype if dtype is not None else x.dtype, jnp.float32))
    axes = canonical_axes(axes, x.ndim)
    check_mask(mask, x.shape)

    def mean_of(*values: Any) -> list[Any]:
        means = [_mean(value, axes, mask) for value in values]
        if axis_name is None:
            return means
        if len(means) == 1:
            return [lax.pmean(means[0], axis_name, axis_index_groups=axis_index_groups)]
        # One collective for both: its latency counts for more than the bytes of a second statistic.
        return list(lax.pmean(jnp.stack(means), axis_name, axis_index_groups=axis_index_groups))

    if not use_mean:
        (variance,) = mean_of(squared(x))
        return lax.full_like(variance, 0), variance
    if not use_fast_variance:
        # Two passes: E[x²] - E[x]² cancels where the mean is much larger than the deviation.
        (mean,) = mean_of(x)
        (variance,) = mean_of(squared(lax.sub(x, lax.expand_dims(mean, axes))))
        return mean, variance
    mean, mean_of_squares = mean_of(x, squared(x))
    # For values far from zero the two terms are nearly equal. Rounding may make their difference negative, and `rsqrt`
    # of it NaN.
    variance = lax.sub(mean_of_squares, squared(mean))
    return mean, lax.max(np.zeros((), variance.dtype), variance)


def check_mask(mask: Any, shape: tuple[Any, ...]) -> None:
    """Refuses a mask that does not broadcast to a shape.

    Raises:
        AxisError: naming both shapes.
    """
    if mask is None:
        return
    try:
        fits = jnp.broadcast_shapes(jnp.shape(mask), shape) == tuple(shape)
    except ValueError:
        fits = False
    if not fits:
        raise AxisError(
            "the mask of a norm does not broadcast to its input",
            at=f"mask: {jnp.shape(mask)}, x: {tuple(shape)}",
            fix="mask[..., None] for a mask without the axis of features",
        )


def _mean(x: Any, axes: tuple[int, ...], mask: Any) -> Any:
    if mask is not None:
        return jnp.mean(x, axes, where=mask)
    if not axes:
        return x
    count = math.prod(x.shape[axis] for axis in axes)
    # NumPy cannot convert a symbolic size, which is a number only when the program runs.
    count = np.asarray(count, x.dtype) if isinstance(count, int) else cast(jnp.asarray(count), x.dtype)
    return lax.div(lax.reduce_sum(x, axes), count)


def squared(x: Any) -> Any:
    """Returns the squared absolute value of each element, which is real for complex numbers, too."""

    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.add(lax.square(lax.real(x)), lax.square(lax.imag(x)))
    return lax.square(x)


def normalize(  # weft: skip(the axes decide the shapes)
    x: Float[Array, "*shape"],
    mean: Float[Array, ...] | None,
    variance: Float[Array, ...],
    scale: Float[Array, ...] | None = None,
    bias: Float[Array, ...] | None = None,
    *,
    axes: Axes,
    feature_axes: Axes = -1,
    epsilon: float = 1e-5,
    dtype: Any = None,
) -> Float[Array, "*shape"]:
    """`(x - mean) * rsqrt(variance + epsilon) * scale + bias`.

    Args:
        x: the values.
        mean, variance: of `x` over `axes`, which they lack; without a mean nothing is subtracted.
        scale, bias: learned, over the `feature_axes`.
        axes: what was reduced.
        feature_axes: what `scale` and `bias` range over.
        epsilon: added to the variance.
        dtype: the dtype of the result; by default what `x`, `scale` and `bias` promote to.

    Raises:
        AxisError: if statistics, scale or bias do not fit the axes.
        ConfigError: for a dtype that is not inexact.

    >>> normalize(jnp.array([1.0, 3.0]), jnp.array(2.0), jnp.array(1.0), axes=0, epsilon=0.0).tolist()
    [-1.0, 1.0]
    """
    result_dtype = compute_dtype(x, scale, bias, dtype=dtype)
    features = canonical_axes(feature_axes, x.ndim)
    reduced = canonical_axes(axes, x.ndim)
    kept_shape = [1 if axis in reduced else size for axis, size in enumerate(x.shape)]
    feature_shape = [size if axis in features else 1 for axis, size in enumerate(x.shape)]
    # The result is cast at the end only: bfloat16 differences `x - mean` have three digits.
    work = jnp.promote_types(jnp.promote_types(x.dtype, result_dtype), variance.dtype)

    # The equations have flax's order, so that programs which walk a jaxpr find the same sequence in both.
    mean, variance = None if mean is None else _over(kept_shape, mean, x), _over(kept_shape, variance, x)
    y = cast(x, work)
    if mean is not None:
        y = lax.sub(y, cast(mean, work))
    factor = cast(lax.rsqrt(lax.add(variance, np.asarray(epsilon, variance.dtype))), work)
    if scale is not None:
        factor = lax.mul(factor, cast(_over(feature_shape, scale, x), work))
    y = lax.mul(y, factor)
    if bias is not None:
        y = lax.add(y, cast(_over(feature_shape, bias, x), work))
    return cast(y, result_dtype)


def _over(shape: Sequence[int], value: Any, x: Any) -> Any:
    """Reshapes a statistic or parameter to axes of size one where it has none, so that it broadcasts."""
    # JAX checks this only when it lowers the program, where the traceback does not lead to the layer any more.
    if value.size != math.prod(shape):
        raise AxisError(
            f"values of shape {value.shape} do not fit an input's axes of sizes {tuple(shape)}",
            fix="check the number of features",
        )
    return laid_like(lax.reshape(value, shape), x)


def running(old: Float[Array, "*shape"], new: Float[Array, "*shape"], momentum: float) -> Float[Array, "*shape"]:
    """Returns the next value of a running statistic, in the statistic's dtype.

    >>> running(jnp.array(1.0), jnp.array(2.0), 0.75).item()
    1.25
    """
    # NumPy scalars of the statistic's dtype: a float64 momentum would promote the statistic under x64.
    keep, take = np.asarray(momentum, old.dtype), np.asarray(1 - momentum, old.dtype)
    return lax.add(lax.mul(keep, old), lax.mul(take, cast(laid_as(new, old), old.dtype)))


@op
def norm(  # weft: skip(the axes decide the shapes)
    x: Float[Array, "*shape"],
    scale: Float[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    mask: Bool[Array, "*#shape"] | None = None,
    *,
    axes: Axes = -1,
    feature_axes: Axes = -1,
    epsilon: float = 1e-6,
    dtype: Any = None,
    use_mean: bool = True,
    use_fast_variance: bool = True,
    axis_name: Any = None,
    axis_index_groups: Any = None,
    promote: Any = promote,
) -> Float[Array, "*shape"]:
    """Normalises by the moments of the input itself, as LayerNorm and (with `use_mean=False`) RMSNorm do.

    Arguments are as in `moments` and `normalize`; `promote` casts the inputs, as `promote` does.

    Raises:
        AxisError: if scale, bias or mask do not fit the input.
        UnboundAxisError: if nothing around binds `axis_name`.

    >>> norm(jnp.array([1.0, 3.0]), epsilon=0.0).tolist()
    [-1.0, 1.0]
    """
    x, scale, bias = promote(x, scale, bias, dtype=dtype)
    mean, variance = moments(
        x,
        axes,
        dtype=dtype,
        axis_name=axis_name,
        axis_index_groups=axis_index_groups,
        use_mean=use_mean,
        use_fast_variance=use_fast_variance,
        mask=mask,
    )
    mean = mean if use_mean else None
    return normalize(x, mean, variance, scale, bias, axes=axes, feature_axes=feature_axes, epsilon=epsilon, dtype=dtype)


@op
def batch_norm(  # weft: skip(the axes decide the shapes)
    x: Float[Array, "*shape"],
    mean: Float[Array, "..."],
    var: Float[Array, "..."],
    scale: Float[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    mask: Bool[Array, "*#shape"] | None = None,
    *,
    momentum: float | None,
    promote_statistics: bool = True,
    axes: Axes,
    feature_axes: Axes = -1,
    epsilon: float = 1e-5,
    dtype: Any = None,
    use_fast_variance: bool = True,
    axis_name: Any = None,
    axis_index_groups: Any = None,
    promote: Any = promote,
) -> tuple[Float[Array, "*shape"], Float[Array, "..."], Float[Array, "..."]]:
    """Normalises by the batch's moments, or by running ones.

    Args:
        x: the batch.
        mean, var: the running statistics.
        scale, bias, mask, axes, feature_axes, epsilon, dtype: as in `moments` and `normalize`.
        momentum: the share of the running statistics that is kept; `None` normalises by them and does not change them.
        promote_statistics: whether `promote` gets the running statistics too, as in flax: then they have a say in the
            dtype of the result, and may be rounded.
        use_fast_variance, axis_name, axis_index_groups: as in `moments`.
        promote: as in `norm`.

    Returns:
        The normalised batch, and the running statistics' next values.

    Raises:
        AxisError: if statistics, scale, bias or mask do not fit the input.
        UnboundAxisError: if nothing around binds `axis_name`.

    >>> x = jnp.array([[1.0], [3.0]])
    >>> y, mean, var = batch_norm(x, jnp.zeros(1), jnp.ones(1), momentum=0.5, axes=0, epsilon=0.0)
    >>> y.tolist(), mean.tolist(), var.tolist()
    ([[-1.0], [1.0]], [1.0], [1.0])
    """
    # `promote` may cast statistics to bfloat16 for this call. The running ones are updated from the originals, or their
    # small steps would be rounded away.
    old_mean, old_var = mean, var
    statistics = (mean, var) if promote_statistics else ()
    x, *statistics, scale, bias = promote(x, *statistics, scale, bias, dtype=dtype)
    mean, var = statistics or (mean, var)
    if momentum is not None:
        mean, var = moments(
            x,
            axes,
            dtype=dtype,
            axis_name=axis_name,
            axis_index_groups=axis_index_groups,
            use_fast_variance=use_fast_variance,
            mask=mask,
        )
        old_mean, old_var = running(old_mean, mean, momentum), running(old_var, var, momentum)
    y = normalize(x, mean, var, scale, bias, axes=axes, feature_axes=feature_axes, epsilon=epsilon, dtype=dtype)
    return y, old_mean, old_var
