"""Attention: the pure ops from queries, keys and values to outputs, and functions that make masks.

Arrays are `(*batch, length, heads, depth)`, weights and masks `(*batch, heads, query length, key length)`. Where keys
and values have fewer heads than queries, each of their heads serves a group of consecutive query heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, Num
from weft.core.errors import AxisError
from weft.modules.dtypes import as_array
from weft.modules.explicit import batched_alike, einsum, laid_as
from weft.modules.op import op

Queries = Float[Array, "*batch q heads depth"]
Keys = Float[Array, "*batch kv kv_heads depth"]
NewKeys = Float[Array, "*batch q kv_heads depth"]  # keys of the new steps, whose queries attend
Weights = Float[Array, "*batch heads q kv"]
Mask = Num[Array, "..."] | Bool[Array, "..."]


def check_attention(query: Queries, key: Keys, value: Keys | None = None) -> None:
    """Refuses queries, keys and values whose shapes do not fit.

    Raises:
        AxisError: if ranks, batch axes, depths or lengths differ, or the heads do not divide into groups.

    >>> check_attention(jnp.ones((3, 2, 4)), jnp.ones((5, 2, 4)))
    >>> try:
    ...     check_attention(jnp.ones((3, 2, 4)), jnp.ones((5, 2, 6)))
    ... except AxisError as error:
    ...     print(error.what)
    query and key depths must match
    """
    arrays = {"query": query, "key": key} if value is None else {"query": query, "key": key, "value": value}
    at = ", ".join(f"{name}: {array.shape}" for name, array in arrays.items())
    if len({array.ndim for array in arrays.values()}) > 1:
        raise AxisError(f"{', '.join(arrays)} must have same rank", at=at)
    if query.ndim < 3:
        raise AxisError("attention takes axes of length, heads and depth", at=at)
    if len({array.shape[:-3] for array in arrays.values()}) > 1:
        raise AxisError(f"{', '.join(arrays)} batch dims must match", at=at)
    if query.shape[-1] != key.shape[-1]:
        raise AxisError("query and key depths must match", at=at)
    if value is not None and key.shape[-3] != value.shape[-3]:
        raise AxisError("key and value lengths must match", at=at)
    for name, array in arrays.items():
        if query.shape[-2] % array.shape[-2]:
            raise AxisError(f"the heads of the query must be a multiple of those of the {name}", at=at)


@op
def attention_weights(
    query: Queries,
    key: Keys,
    bias: Float[Array, "..."] | None = None,
    mask: Mask | None = None,
    *,
    is_causal: bool = False,
    precision: Any = None,
) -> Weights:
    """Returns the attention weights: `softmax(query @ key / sqrt(depth) + bias)`.

    Args:
        query, key: arrays of one dtype, which is also the dtype of the weights.
        bias: added to the logits; broadcasts against the weights.
        mask: which keys may be attended to; broadcasts against the weights.
        is_causal: whether a query attends only to keys at or before its own position.
        precision: see `jax.lax.Precision`.

    >>> attention_weights(jnp.zeros((2, 1, 4)), jnp.zeros((2, 1, 4)), is_causal=True).tolist()
    [[[1.0, 0.0], [0.5, 0.5]]]
    """
    dtype, heads, groups = query.dtype, query.shape[-2], key.shape[-2]
    # Queries are scaled before the product, as in flax: scaled afterwards, float16 logits may overflow first.
    query = query / jnp.sqrt(query.shape[-1]).astype(dtype)
    if heads == groups:
        logits = einsum("...qhd,...khd->...hqk", query, key, precision=precision)
    else:
        # Query heads that share a key head get an axis of their own. To repeat the keys for each query head would
        # multiply the memory of the cache, which grouped queries are made to save.
        query = jnp.reshape(query, (*query.shape[:-2], groups, heads // groups, query.shape[-1]))
        logits = einsum("...qhgd,...khd->...hgqk", query, key, precision=precision)
        logits = jnp.reshape(logits, (*logits.shape[:-4], heads, *logits.shape[-2:]))
    if bias is not None:
        logits = logits + bias
    if is_causal:
        causal = jnp.tril(jnp.ones(logits.shape[-2:], bool))
        mask = causal if mask is None else jnp.logical_and(mask, _widened(causal, mask.ndim))
    if mask is not None:
        # Not minus infinity: a query that may attend to nothing, such as padding, would have a softmax of NaN, and so
        # would the gradients of the whole batch. A bias may have widened the logits, below the minimum of the query's
        # dtype.
        logits = jnp.where(_widened(mask, logits.ndim), logits, jnp.finfo(logits.dtype).min)
    return jax.nn.softmax(logits).astype(dtype)


def _widened(array: Array, rank: int) -> Array:
    return lax.expand_dims(array, range(rank - array.ndim)) if array.ndim < rank else array


@op
def drop_weights(weights: Weights, key: Key[Array, ""], *, rate: float, broadcast: bool) -> Weights:
    """Applies dropout to attention weights.

    Args:
        weights: the weights.
        key: a typed key.
        rate: the probability of zero, in [0, 1).
        broadcast: whether one decision holds for all of the batch and all heads.

    >>> dropped = drop_weights(jnp.ones((1, 4, 4)), jax.random.key(0), rate=0.5, broadcast=False)
    >>> sorted(set(dropped.ravel().tolist()))
    [0.0, 2.0]
    """
    shape = (*(1,) * (weights.ndim - 2), *weights.shape[-2:]) if broadcast else weights.shape
    keep = jax.random.bernoulli(key, 1.0 - rate, shape)
    return weights * (keep.astype(weights.dtype) / jnp.asarray(1.0 - rate, weights.dtype))


@op
def weighted_values(weights: Weights, value: Keys, *, precision: Any = None) -> Queries:
    """Returns the weighted means of the values.

    >>> weighted_values(jnp.full((1, 1, 2), 0.5), jnp.array([1.0, 3.0]).reshape(2, 1, 1)).tolist()
    [[[2.0]]]
    """
    heads, groups = weights.shape[-3], value.shape[-2]
    if heads == groups:
        return einsum("...hqk,...khd->...qhd", weights, value, precision=precision)
    weights = jnp.reshape(weights, (*weights.shape[:-3], groups, heads // groups, *weights.shape[-2:]))
    y = einsum("...hgqk,...khd->...qhgd", weights, value, precision=precision)
    return jnp.reshape(y, (*y.shape[:-3], heads, y.shape[-1]))


@op
def fused_attention(
    query: Queries,
    key: Keys,
    value: Keys,
    bias: Float[Array, "..."] | None = None,
    mask: Mask | None = None,
    *,
    is_causal: bool = False,
    window: tuple[int, int] | None = None,
    implementation: Any = None,
) -> Queries:
    """Attention by `jax.nn.dot_product_attention`, which stores no weights where the device has a fused kernel.

    Arguments are as in `attention_weights` and `weighted_values`; and

    Args:
        window: how many keys before and after its own position a query attends to, at most.
        implementation: the kernel to use, `"xla"` or `"cudnn"`.

    Source: `jax.nn.dot_product_attention`.

    >>> query, value = jnp.zeros((1, 1, 2)), jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(2, 1, 2)
    >>> fused_attention(query, jnp.ones((2, 1, 2)), value).tolist()
    [[[2.0, 3.0]]]
    """
    batch = query.shape[:-3]
    if len(batch) > 1:
        # JAX's function takes one batch axis. The mask and the bias are broadcast only where they differ along the
        # batch.
        query, key, value = (jnp.reshape(array, (math.prod(batch), *array.shape[-3:])) for array in (query, key, value))
        bias, mask = (None if array is None else _one_batch_axis(as_array(array), batch) for array in (bias, mask))
    if mask is not None:
        mask = mask.astype(bool)
    # With fewer key heads than query heads, the axes of heads differ in size and cannot be divided alike.
    batch_axes = (0, 2) if query.shape[2] == key.shape[2] else (0,)
    query, key, value = batched_alike((query, key, value), batch_axes)
    kernel: dict[str, Any] = {"local_window_size": window, "implementation": implementation}
    y = jax.nn.dot_product_attention(query, key, value, bias, mask, is_causal=is_causal, **kernel)
    return jnp.reshape(y, (*batch, *y.shape[-3:])) if len(batch) > 1 else y


def _one_batch_axis(array: Array, batch: tuple[int, ...]) -> Array:
    own = array.shape[:-3]
    if any(size != 1 for size in own) and own != batch:
        array = jnp.broadcast_to(array, (*batch, *array.shape[-3:]))
    return jnp.reshape(array, (math.prod(array.shape[:-3]), *array.shape[-3:]))


@op
def cache_step(
    cached_key: Keys,
    cached_value: Keys,
    index: Int[Array, "*#batch"],
    key: NewKeys,
    value: NewKeys,
    *,
    window: tuple[int, int] | None = None,
) -> tuple[Keys, Keys, Bool[Array, "*batch 1 q kv"]]:
    """Writes the keys and values of the next steps into a decoding cache.

    Args:
        cached_key, cached_value: keys and values of all steps, with zeros for future steps.
        index: how many steps the cache has seen: one number, or one for each row of the batch.
        key, value: keys and values of the new steps, one or more.
        window: as in `fused_attention`.

    Returns:
        The new caches, and the mask by which each new step attends to itself and to earlier steps.

    >>> keys, values, step = jnp.zeros((3, 1, 2)), jnp.zeros((3, 1, 2)), jnp.ones((1, 1, 2))
    >>> keys, values, mask = cache_step(keys, values, jnp.array(1), step, step)
    >>> keys[:, 0, 0].tolist(), mask.tolist()
    ([0.0, 1.0, 0.0], [[[True, True, False]]])
    """
    batch, length = cached_key.shape[:-3], cached_key.shape[-3]
    if index.ndim:  # one number for all rows may be an array of size 1
        index = jnp.broadcast_to(index, batch)
    steps = steps_behind(index, key.shape[-3])
    # Later places of the cache hold zeros, whose keys would get weight in the softmax: the mask hides them.
    places = jnp.arange(length, dtype=index.dtype)
    known = jnp.expand_dims(attended_keys(steps, places, is_causal=True, window=window), -3)
    return (
        _put(cached_key, laid_as(key.astype(cached_key.dtype), cached_key), index),
        _put(cached_value, laid_as(value.astype(cached_value.dtype), cached_value), index),
        jnp.broadcast_to(known, (*batch, 1, *known.shape[-2:])),
    )


def steps_behind(index: Int[Array, "*batch"], count: int) -> Int[Array, "*batch count"]:
    """Returns the positions of the next steps.

    >>> steps_behind(jnp.array([0, 4]), 2).tolist()
    [[0, 1], [4, 5]]
    """
    return lax.expand_dims(index, [index.ndim]) + lax.broadcasted_iota(
        index.dtype, (*(1,) * index.ndim, count), index.ndim
    )


def _put(cached: Array, steps: Array, index: Array) -> Array:
    """Writes steps into a cache at `index`, which may be a number for each row of the batch."""
    if index.ndim:
        # A `where` over the whole cache would need no vmap, and made a decoding step twice as slow.
        return jax.vmap(_put)(cached, steps, laid_as(index, cached))
    zero = jnp.zeros((), index.dtype)
    return lax.dynamic_update_slice(cached, steps, (*(zero,) * (cached.ndim - 3), index, zero, zero))


def attended_keys(
    query: Int[Array, "*batch q"], key: Int[Array, "kv"], *, is_causal: bool, window: tuple[int, int] | None
) -> Bool[Array, "*batch q kv"]:
    """Returns the mask of the keys to which each query may attend by its position.

    Args:
        query, key: the position of each.
        is_causal: whether a query attends only to keys at or before its own position.
        window: as in `fused_attention`.

    >>> places = jnp.arange(3)
    >>> attended_keys(places, places, is_causal=True, window=(1, 0)).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    ahead = lax.expand_dims(key, range(query.ndim)) - jnp.expand_dims(query, -1)
    mask = ahead <= 0 if is_causal else jnp.ones_like(ahead, bool)
    return mask if window is None else mask & (ahead >= -window[0]) & (ahead <= window[1])


# ---------------------------------------------------------------------------------------------------------- masks


def attention_mask(
    query: Num[Array, "*batch q"],
    key: Num[Array, "*batch kv"],
    pairwise: Callable[..., Any] = jnp.multiply,
    extra_batch_axes: int = 0,
    dtype: Any = jnp.float32,
) -> Num[Array, "*extra_batch 1 q kv"]:
    """Makes a mask from a value for each query and each key, with an axis of heads.

    Args:
        query, key: such as ones for tokens and zeros for padding.
        pairwise: the function that combines a query's value with a key's.
        extra_batch_axes: how many axes of size one to put in front.
        dtype: of the mask.

    >>> attention_mask(jnp.array([1, 1]), jnp.array([1, 0])).tolist()
    [[[1.0, 0.0], [1.0, 0.0]]]
    """
    mask = pairwise(jnp.expand_dims(query, -1), jnp.expand_dims(key, -2))
    return jnp.expand_dims(mask, (*range(extra_batch_axes), -3)).astype(dtype)


def causal_mask(
    x: Num[Array, "*batch length"], extra_batch_axes: int = 0, dtype: Any = jnp.float32
) -> Num[Array, "*extra_batch 1 length length"]:
    """Makes the mask by which each position attends to itself and to earlier positions.

    >>> causal_mask(jnp.zeros(2)).tolist()
    [[[1.0, 0.0], [1.0, 1.0]]]
    """
    places = jnp.broadcast_to(jnp.arange(x.shape[-1], dtype=jnp.int32), x.shape)
    return attention_mask(places, places, jnp.greater_equal, extra_batch_axes, dtype)


def combine_masks(*masks: Mask | None, dtype: Any = jnp.float32) -> Array | None:
    """Joins masks by logical and; `None`s are ignored, and `None`s alone give `None`.

    Raises:
        AxisError: if their ranks differ.

    >>> combine_masks(jnp.array([1, 1]), None, jnp.array([0, 1])).tolist()
    [0.0, 1.0]
    """
    present = [mask for mask in masks if mask is not None]
    if len({mask.ndim for mask in present}) > 1:
        raise AxisError("masks must have the same rank", at=", ".join(str(mask.shape) for mask in present))
    if not present:
        return None
    joined = present[0]
    for mask in present[1:]:
        joined = jnp.logical_and(joined, mask)
    return joined.astype(dtype)
