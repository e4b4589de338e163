"""Attention functions: weights, results, and masks. The layer `MultiHeadAttention` is in `attention`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from weft.modules import ops
from weft.modules.construct import ConfigError
from weft.nnx.modules.module import Module
from weft.nnx.nn import dtypes
from weft.nnx.variable.kinds import Intermediate


def dot_product_attention_weights(
    query: jax.Array,
    key: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: Module | None = None,
    promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
    is_causal: bool = False,
) -> jax.Array:
    """Computes attention weights: how much each query attends to each key.

    Args:
        query: `(*batch, q, heads, depth)`.
        key: `(*batch, kv, heads, depth)`, or fewer heads, each of which serves a group of the query's.
        bias: added to the logits; broadcasts against the weights.
        mask: which keys may be attended to; broadcasts against the weights.
        broadcast_dropout: whether the batch and all heads share a dropout mask.
        dropout_rng: a key for dropout.
        dropout_rate: the probability that a weight is dropped.
        deterministic: whether to disable dropout.
        dtype: the dtype to compute in.
        precision: see `jax.lax.Precision`.
        module: a Module in which to `sow` the weights as `attention_weights`.
        promote_dtype: casts `(query, key)` to one dtype, given `dtype`.
        is_causal: whether a query attends only to keys at its own position and before.

    Returns:
        The weights, `(*batch, heads, q, kv)`.

    Raises:
        ValueError: if shapes do not fit, for a rate outside [0, 1), or for dropout without a key.

    >>> x = jnp.zeros((2, 1, 4))
    >>> dot_product_attention_weights(x, x, is_causal=True).tolist()
    [[[1.0, 0.0], [0.5, 0.5]]]
    """
    # Checked in Python: without a key, the failure would come from inside of `jax.random`, which names no argument of
    # this call.
    _check_dropout(dropout_rate, deterministic, dropout_rng)
    query, key = promote_dtype((query, key), dtype=dtype)
    ops.check_attention(query, key)
    weights = ops.attention_weights(query, key, bias, mask, is_causal=is_causal, precision=precision)
    if module is not None:
        # Recorded before dropout, so that the recorded weights do not depend on a key.
        module.sow(Intermediate, "attention_weights", weights)
    if deterministic or dropout_rate == 0:
        return weights
    return ops.drop_weights(weights, cast(jax.Array, dropout_rng), rate=dropout_rate, broadcast=broadcast_dropout)


def _check_dropout(rate: float, deterministic: bool, key: jax.Array | None) -> None:
    if not 0.0 <= rate < 1.0:
        raise ConfigError(
            f"dropout_rate must be in the range [0, 1), got {rate!r}", fix="a rate of 1 would drop every weight"
        )
    if rate > 0 and not deterministic and key is None:
        raise ConfigError(
            "dropout_rng is required: dropout of attention weights needs a key",
            fix="pass dropout_rng=, or deterministic=True",
        )


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: Module | None = None,
    promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
    is_causal: bool = False,
) -> jax.Array:
    """Averages values with attention weights; the other arguments are those of `dot_product_attention_weights`.

    Args:
        value: `(*batch, kv, heads, depth)`, with as many heads as the key.

    Returns:
        `(*batch, q, heads, depth)`.

    Raises:
        ValueError: if shapes do not fit.

    >>> x = jnp.ones((2, 1, 4))
    >>> dot_product_attention(x, x, 3 * x).tolist()[0]
    [[3.0, 3.0, 3.0, 3.0]]
    """
    query, key, value = promote_dtype((query, key, value), dtype=dtype)
    ops.check_attention(query, key, value)
    # Without dropout and without recording, the weights are not needed as an array, so a fused kernel can be used.
    if dropout_rate == 0 and module is None:
        # XLA on CPUs cannot compile a float16 product that is accumulated in float32; JAX's eager dispatch can run it.
        # So float16 takes the function without its `jit`.
        fused = ops.fused_attention.__wrapped__ if query.dtype == jnp.float16 else ops.fused_attention  # pyright: ignore[reportFunctionMemberAccess]
        return fused(query, key, value, bias, mask, is_causal=is_causal)
    dropout = broadcast_dropout, dropout_rng, dropout_rate, deterministic
    weights = dot_product_attention_weights(
        query, key, bias, mask, *dropout, query.dtype, precision, module, promote_dtype, is_causal
    )
    return ops.weighted_values(weights, value, precision=precision)


def make_attention_mask(
    query_input: jax.Array,
    key_input: jax.Array,
    pairwise_fn: Callable[..., Any] = jnp.multiply,
    extra_batch_dims: int = 0,
    dtype: Any = jnp.float32,
) -> jax.Array:
    """Makes an attention mask with a heads axis, from values for each query and each key.

    Args:
        query_input: `(*batch, q)`, such as ones for tokens and zeros for padding.
        key_input: `(*batch, kv)`.
        pairwise_fn: computes a mask element from a query's value and a key's value.
        extra_batch_dims: the number of leading axes of size one to add.
        dtype: dtype of the mask.

    Returns:
        `(*extra, *batch, 1, q, kv)`.

    >>> make_attention_mask(jnp.array([1, 1]), jnp.array([1, 0])).tolist()
    [[[1.0, 0.0], [1.0, 0.0]]]
    """
    return ops.attention_mask(query_input, key_input, pairwise_fn, extra_batch_dims, dtype)


def make_causal_mask(x: jax.Array, extra_batch_dims: int = 0, dtype: Any = jnp.float32) -> jax.Array:
    """Makes a causal mask for `(*batch, length)`: each position attends to itself and those before.

    Args:
        x: only its shape counts.
        extra_batch_dims: the number of leading axes of size one to add.
        dtype: dtype of the mask.

    Returns:
        `(*extra, *batch, 1, length, length)`.

    >>> make_causal_mask(jnp.ones(2)).tolist()
    [[[1.0, 0.0], [1.0, 1.0]]]
    """
    return ops.causal_mask(x, extra_batch_dims, dtype)


def combine_masks(*masks: jax.Array | None, dtype: Any = jnp.float32) -> jax.Array | None:
    """Combines masks by logical and. Nones are ignored; without any mask the result is None.

    Raises:
        ValueError: if their ranks differ.

    >>> known = make_attention_mask(jnp.ones(2), jnp.array([1, 0]))
    >>> combine_masks(known, None, make_causal_mask(jnp.ones(2))).tolist()
    [[[1.0, 0.0], [1.0, 0.0]]]
    """
    return ops.combine_masks(*masks, dtype=dtype)
