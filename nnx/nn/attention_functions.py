"""Attention functions: weights, results, masks, and rotary position embedding (`RoPE`).

`RoPE` rotates queries and keys by angles proportional to their positions, so their products depend on distances only.
The layer `MultiHeadAttention` is in `attention`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from weft.modules import ops
from weft.modules.construct import ConfigError
from weft.nnx.errors import AxisError
from weft.nnx.modules.module import Module
from weft.nnx.nn import dtypes
from weft.nnx.objects.attributes import data
from weft.nnx.variable.kinds import Intermediate
from weft.nnx.variable.variable import Variable


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
    if not 0.0 <= dropout_rate < 1.0:
        raise ConfigError(
            f"dropout_rate must be in the range [0, 1), got {dropout_rate!r}", fix="a rate of 1 would drop every weight"
        )
    if dropout_rate > 0 and not deterministic and dropout_rng is None:
        raise ConfigError(
            "dropout_rng is required: dropout of attention weights needs a key",
            fix="pass dropout_rng=, or deterministic=True",
        )
    query, key = promote_dtype((query, key), dtype=dtype)
    ops.check_attention(query, key)
    weights = ops.attention_weights(query, key, bias, mask, is_causal=is_causal, precision=precision)
    if module is not None:
        # Recorded before dropout, so that the recorded weights do not depend on a key.
        module.sow(Intermediate, "attention_weights", weights)
    if deterministic or dropout_rate == 0:
        return weights
    return ops.drop_weights(weights, cast(jax.Array, dropout_rng), rate=dropout_rate, broadcast=broadcast_dropout)


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


class RoPE(Module):
    """Rotary position embedding. It has no parameters; its precomputed tables, if any, are plain Variables.

    Args:
        theta: the base of the frequencies: the last pair of features rotates about `theta` times slower than the first.
        embedding_size: the number of features of a head, which must be even. With `max_seq_len`, tables of sines and
            cosines are computed once and stored as `cached_sin` and `cached_cos`.
        max_seq_len: the number of positions in the tables.

    Raises:
        ValueError: if only one of the two is passed, or `embedding_size` is odd.

    >>> rope = RoPE()
    >>> rope(jnp.ones((2, 2))).round(3).tolist()
    [[1.0, 1.0], [-0.30100002884864807, 1.3820000886917114]]

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
    """

    cached_sin: Variable[Any] | None
    cached_cos: Variable[Any] | None

    def __init__(self, theta: float = 10000.0, embedding_size: int | None = None, max_seq_len: int | None = None):
        self.theta = theta
        if (embedding_size is None) != (max_seq_len is None):
            raise ConfigError(
                "RoPE: either both `embedding_size` and `max_seq_len` or none of them must be provided",
                fix="pass both for precomputed tables, or neither",
            )
        # Declared as data, because tables may be assigned later.
        self.cached_sin = self.cached_cos = data(None)
        if embedding_size is not None and max_seq_len is not None:
            sin, cos = self._rotation_for(embedding_size, jnp.arange(float(max_seq_len)))
            # Not Params: an optimizer over `nnx.Param` would train the tables.
            self.cached_sin, self.cached_cos = Variable(sin), Variable(cos)

    def _rotation_for(self, embedding_size: int, input_positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Computes sines and cosines of the angles of each position, `(*positions, embedding_size / 2)`."""
        if embedding_size <= 0 or embedding_size % 2:
            raise ConfigError(f"RoPE: `embedding_size` must be positive and even, not {embedding_size}")
        frequencies = 1.0 / (self.theta ** (jnp.arange(0.0, embedding_size, 2) / embedding_size))
        # Reshaped to the rank of the positions: under `jax_numpy_rank_promotion="raise"` JAX refuses to add axes by
        # itself.
        angles = jnp.expand_dims(input_positions, -1) * jnp.reshape(
            frequencies, (*(1,) * input_positions.ndim, embedding_size // 2)
        )
        return jnp.sin(angles), jnp.cos(angles)

    def __call__(self, x: jax.Array, input_positions: jax.Array | None = None) -> jax.Array:
        """Rotates the features of each position.

        Args:
            x: `(*batch, seq, features)`.
            input_positions: the positions, `(seq,)` or with batch axes in front; by default 0, 1, 2, ..., with angles
                from the tables if there are any.

        Returns:
            An array of the shape of `x`.

        Raises:
            ValueError: if the number of positions is not that of `x`, the tables are too short, or `features` is odd.
        """
        places, features = x.shape[-2:]
        if input_positions is None and self.cached_sin is not None and self.cached_cos is not None:
            # The slice below would be shorter than the sequence, and the product would fail without naming the table.
            if places > self.cached_sin.shape[0]:
                raise AxisError(
                    f"RoPE has tables for {self.cached_sin.shape[0]} positions, but this sequence has {places}",
                    at=f"x: {jax.typeof(x)}",
                    fix="create it with a larger max_seq_len",
                )
            sin, cos = self.cached_sin[...][:places], self.cached_cos[...][:places]
        else:
            if input_positions is None:
                # Floats, because under strict dtype promotion JAX refuses a product of integers and the float
                # frequencies.
                input_positions = jnp.arange(float(places))
            if input_positions.shape[-1] != places:
                raise AxisError(
                    "`input_positions` must have the same seq_len as `x`",
                    at=f"x: {jax.typeof(x)}, input_positions: {jax.typeof(input_positions)}",
                )
            sin, cos = self._rotation_for(features, input_positions)
        return ops.turn(x, sin, cos)


def dot_product_attention_with_rope(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    rope: RoPE,
    input_positions: jax.Array | None = None,
    **kwargs: Any,
) -> jax.Array:
    """Computes `dot_product_attention` of queries and keys that are rotated by their positions.

    Pass `functools.partial(dot_product_attention_with_rope, rope=rope)` as `attention_fn` of `MultiHeadAttention`.

    Args:
        query: `(*batch, q, heads, depth)`.
        key: `(*batch, kv, heads, depth)`.
        value: `(*batch, kv, heads, depth)`.
        rope: the embedding, which is applied to each head.
        input_positions: positions of the queries, `(q,)` or `(*batch, q)`, and of the keys if there are as many keys.
            Any other number of keys, as from a cache, has the positions 0, 1, 2, .... By default both count from 0.
        kwargs: the options of `dot_product_attention`.

    Returns:
        `(*batch, q, heads, depth)`.

    Raises:
        ValueError: if shapes do not fit.

    >>> x = jnp.ones((3, 1, 4))
    >>> dot_product_attention_with_rope(x, x, x, rope=RoPE()).shape
    (3, 1, 4)
    """
    # In decoding there is one query, at position n, and the keys of the whole cache, at positions 0, 1, 2, ....
    key_positions = input_positions
    if input_positions is not None and input_positions.shape[-1] != key.shape[-3]:
        key_positions = None
    query, key = (
        # Over the heads, which stand between positions and features; all heads have the same positions.
        jax.vmap(rope, in_axes=(-2, None), out_axes=-2)(heads, positions)
        for heads, positions in ((query, input_positions), (key, key_positions))
    )
    return dot_product_attention(query, key, value, **kwargs)


def turns_by_position(attention_fn: Any) -> bool:
    """Whether an `attention_fn` is `dot_product_attention_with_rope`, which needs the position of a decoding step.

    >>> turns_by_position(functools.partial(dot_product_attention_with_rope, rope=RoPE()))
    True
    """
    # The function is passed with its `rope` bound, possibly in several partials.
    while isinstance(attention_fn, functools.partial):
        attention_fn = attention_fn.func
    return attention_fn is dot_product_attention_with_rope
