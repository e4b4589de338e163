"""Rotary position embedding: `RoPE`, and an `attention_fn` for `MultiHeadAttention` that rotates queries and keys.

Queries and keys are rotated by angles proportional to their positions, so their products depend on distances only.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from weft.modules import ops
from weft.modules.construct import ConfigError
from weft.nnx.errors import AxisError
from weft.nnx.modules.module import Module
from weft.nnx.nn.attention_functions import dot_product_attention
from weft.nnx.objects.attributes import data
from weft.nnx.variable.variable import Variable


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
