"""KeyValueCache: the keys and values of earlier steps, for decoding a sequence step by step.

Rows of a batch may be at different steps: `rewind(model, lengths)` gives each row an index of its own. After that, the
next step of each row is written after the row's last step, and attends to the steps of this row alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import checkify
from jaxtyping import Array, Bool, Float, Int
from weft.core.errors import WeftError
from weft.core.records.filters import InstanceOf
from weft.core.records.kinds import Cache
from weft.core.records.module import Module
from weft.core.records.surgery import at
from weft.modules.attention.dot_product import cache_step
from weft.modules.attention.positions import known_integer
from weft.modules.construct import check_positive

T = TypeVar("T")


class CacheError(WeftError, ValueError):
    """Raised for a decoding cache that is full, or that does not fit the call."""

    of_layer = True


class KeyValueCache(Module):
    """The keys and values of the steps that attention has seen so far.

    Args:
        max_length: how many steps there is room for.
        kv_heads, depth: how many heads keys and values have, and their size.
        batch: the sizes of the batch's axes.
        dtype: of keys and values.

    Raises:
        ConfigError: for a size that is not a positive integer.

    >>> KeyValueCache(8, 2, 4, batch=(3,)).keys.shape
    (3, 8, 2, 4)
    """

    keys: Annotated[Float[Array, "*batch max_length kv_heads depth"], Cache]
    values: Annotated[Float[Array, "*batch max_length kv_heads depth"], Cache]
    index: Annotated[Int[Array, "*#batch"], Cache]

    def __init__(
        self, max_length: int, kv_heads: int, depth: int, *, batch: Sequence[int] = (), dtype: Any = jnp.float32
    ):
        check_positive("KeyValueCache", max_length=max_length, kv_heads=kv_heads, depth=depth)
        # Two arrays, although both are zeros: XLA refuses to donate one buffer twice.
        self.keys, self.values = (jnp.zeros((*batch, max_length, kv_heads, depth), dtype) for _ in range(2))
        self.index = jnp.zeros((), jnp.int32)


def rewind(model: T, steps: int | Array) -> T:  # weft: skip(of any tree)
    """Returns a model whose caches have seen only the first `steps` steps.

    Prompts of unequal length are read at once, with padding after their ends, and `rewind(model, lengths)` makes the
    caches forget the padding. Rejected drafts, and rows of a batch that start again, are rewound in the same way.

    Args:
        model: a tree with `KeyValueCache`s at any depth.
        steps: how many steps stay: one number for all rows, or an integer for each row of the batch, `(*batch,)`.

    Returns:
        The model; if `steps` has a number for each row, so has the index of its caches.

    Raises:
        FilterError: if there is no cache in it.
        CacheError: if that is more than a cache holds, as far as that is known, negative, or not of the batch's shape.

    >>> cache = KeyValueCache(8, 2, 4, batch=(2,)).replace(index=jnp.array(5))
    >>> rewind(cache, jnp.array([5, 3])).index.tolist(), int(rewind(cache, 4).index)
    ([5, 3], 4)
    """
    # By class and at any depth, so that one call rewinds the caches of all blocks to the same step.
    return cast(T, at(model, InstanceOf(KeyValueCache)).apply(lambda cache: _rewound(cache, steps)))


def _rewound(cache: KeyValueCache, steps: int | Array) -> KeyValueCache:
    # In a `Stack` the caches of all layers are one record, with axes of layers in front of the batch's.
    index, steps = cache.index, jnp.asarray(steps, cache.index.dtype)
    rows = cache.keys.shape[:-3] if steps.ndim else index.shape
    if steps.shape != rows[len(rows) - steps.ndim :]:
        raise CacheError(
            "a cache is rewound to a number of steps, or to a number for each row of its batch",
            at=f"steps: {steps.shape}, batch axes of cache.keys: {rows}",
        )
    steps = jnp.broadcast_to(steps, rows)
    # A larger index would make steps visible that were never written: their keys are zeros.
    wrong = (steps < 0) | (steps > lax.expand_dims(index, range(index.ndim, len(rows))))
    if known_integer(jnp.any(wrong)):
        raise CacheError(
            "a cache cannot be rewound to more steps than it holds",
            at=f"steps: {steps.tolist()}, cache.index: {index.tolist()}",
            fix="give the model the steps first, then rewind its caches",
        )
    return cache.replace(index=steps)


def check_room(  # weft: skip(it refuses)
    cache: KeyValueCache, keys: Float[Array, "*batch steps kv_heads depth"], crossing: bool
) -> None:
    """Refuses steps that a cache cannot take.

    Args:
        cache: the cache.
        keys: those of the steps.
        crossing: whether there is a context to attend to.

    Raises:
        CacheError: if the batch is not the cache's, there is a context, or the cache is full, as far as that is known.
    """
    if crossing:
        raise CacheError(
            "this attention has a cache of its own earlier steps, and was given a context to attend to",
            fix="give a cache only to self-attention; a context is there as a whole at each step",
        )
    *batch, steps, _, _ = keys.shape
    *room, length, _, _ = cache.keys.shape
    if batch != room:
        raise CacheError(
            "the batch axes of the input differ from those of the cache",
            at=f"x: batch axes {tuple(batch)}, cache: {tuple(room)}",
            fix=f"with_cache({length}, batch={tuple(batch)})",
        )
    # Rows may be at different steps, and the row that is furthest needs the room.
    index = known_integer(jnp.max(cache.index))
    # Symbolic sizes cannot be compared; an exported program is meant for sizes that fit.
    if isinstance(steps, int) and isinstance(length, int) and (index or 0) + steps > length:
        raise CacheError(
            f"this cache has room for {length} steps, and the call has {steps}"
            + ("" if not index else f" after the {index} in the cache"),
            at=f"cache.keys: {jax.typeof(cache.keys)}",
            fix="with_cache of a larger max_length",
        )


def step_of(  # weft: skip(the op is judged)
    cache: KeyValueCache,
    queries: Float[Array, "*batch q heads depth"],
    keys: Float[Array, "*batch q kv_heads depth"],
    values: Float[Array, "*batch q kv_heads depth"],
    window: tuple[int, int] | None,
) -> tuple[Any, Any, Any, Bool[Array, "*batch 1 q kv"], KeyValueCache]:
    """Returns queries, all keys and values, the mask of visible keys, and the successor of a cache for the next steps.

    Args:
        cache: the cache.
        queries, keys, values: the queries, keys and values of the steps.
        window: as in `fused_attention`.
    """
    all_keys, all_values, known = cache_step(cache.keys, cache.values, cache.index, keys, values, window=window)
    after = cache.index + keys.shape[-3]
    fits = after <= cache.keys.shape[-3]
    # `dynamic_update_slice` clamps its index, so steps beyond the end would overwrite the last ones, and the output
    # would look right. NaN shows.
    queries = jnp.where(lax.expand_dims(fits, range(fits.ndim, queries.ndim)), queries, jnp.nan)
    # Does nothing unless the program runs under `checkify`, because compiled code cannot raise otherwise.
    checkify.debug_check(jnp.all(fits), "steps beyond the end of the cache of a MultiHeadAttention")
    successor = cache.replace(keys=all_keys, values=all_values, index=after)
    return queries, all_keys.astype(keys.dtype), all_values.astype(values.dtype), known, successor
