"""Positional encodings: give attention, which treats its input as a set, the order of a sequence.

Four encodings, each an op or a table, and a record that holds the options:

| record | what it does | where |
|---|---|---|
| `RoPE` | turns queries and keys by angles that grow with the position | inside of attention (`rope=`) |
| `ALiBi` | makes attention weaker with the distance | inside of attention (`position_bias=`) |
| `SinusoidalPositions` | adds waves of the position | after the embedding  |
| `LearnedPositions` | adds a row of a learned table | after the embedding  |

Positions count from 0. In decoding, a model sees one step at a time: attention knows the position from its cache, and
the last two records take it as `offset`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.nn import initializers
from jaxtyping import Array, Float, Int, Num
from weft.core.errors import AxisError
from weft.core.records.module import Module, static
from weft.modules.construct import ConfigError, Initializer, KeyLike, check_features, check_positive
from weft.modules.dense.linear import embed
from weft.modules.drawing import draw
from weft.modules.explicit import laid_like
from weft.modules.op import op

default_position_init = initializers.normal(0.02)


@op
def rope(
    x: Float[Array, "*batch seq heads depth"],
    positions: Num[Array, "*#batch seq"],
    *,
    base: float = 10_000.0,
    scaling: float = 1.0,
    interleaved: bool = False,
) -> Float[Array, "*batch seq heads depth"]:
    """Rotates pairs of features by angles proportional to the position, so that products depend on distances alone.

    Args:
        x: queries or keys, of an even number of features.
        positions: of each place; leading axes broadcast against the batch.
        base: the slowest pair turns about this many times more slowly than the first.
        scaling: what positions are divided by, to fit longer sequences into the angles of shorter ones.
        interleaved: whether pairs are neighbours, as in the paper, instead of feature `i` and `i + half`.

    Returns:
        The turned array, in the dtype of `x`; the angles are float32.

    Raises:
        AxisError: if the number of features is odd.

    >>> rope(jnp.ones((2, 1, 2)), jnp.array([0, 1])).round(3).tolist()
    [[[1.0, 1.0]], [[-0.30100002884864807, 1.3820000886917114]]]
    """
    # A symbolic size may be even; an exported program is meant for sizes that fit.
    if isinstance(x.shape[-1], int) and x.shape[-1] % 2:
        raise AxisError(
            f"RoPE rotates pairs of features, so their number must be even, not {x.shape[-1]}",
            at=f"x: {jax.typeof(x)}",
            fix="choose an even head_features",
        )
    half = x.shape[-1] // 2
    # In float32, because bfloat16 has 8 bits: positions above 256 would share angles with their neighbours.
    angles = jnp.expand_dims(_angles(positions.astype(jnp.float32) / scaling, half, base), -2)
    wide = jnp.promote_types(x.dtype, jnp.float32)
    angles = lax.expand_dims(angles, range(x.ndim - angles.ndim)).astype(wide)
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    turning = x.astype(wide)
    if interleaved:
        first, second = turning[..., 0 : 2 * half : 2], turning[..., 1 : 2 * half : 2]
    else:
        first, second = turning[..., :half], turning[..., half : 2 * half]
    turned = (first * cos - second * sin, second * cos + first * sin)
    y = jnp.reshape(jnp.stack(turned, -1), (*x.shape[:-1], 2 * half)) if interleaved else jnp.concatenate(turned, -1)
    # The last part is empty. With a symbolic size JAX does not know that, and would give the result another shape.
    return jnp.concatenate([y.astype(x.dtype), x[..., 2 * half :]], -1)


@op
def turn(
    x: Float[Array, "*batch depth"], sin: Float[Array, "*#batch half"], cos: Float[Array, "*#batch half"]
) -> Float[Array, "*batch depth"]:
    """Rotates pairs of features, `i` and `i + half`, by angles given as sines and cosines.

    Args:
        x: an array of an even number of features.
        sin: of each pair's angle; leading axes broadcast against the batch.
        cos: likewise.

    Returns:
        The turned array, in the dtype that all three promote to.

    Raises:
        AxisError: if there is not an angle for each pair.

    >>> turn(jnp.array([1.0, 0.0]), jnp.array([1.0]), jnp.array([0.0])).tolist()
    [0.0, 1.0]
    """
    half = x.shape[-1] // 2
    if x.shape[-1] != 2 * half or sin.shape != cos.shape or sin.shape[-1] != half:
        raise AxisError(
            f"turn takes one angle for each pair of features, and x has {x.shape[-1]} features",
            at=f"x: {jax.typeof(x)}, sin: {jax.typeof(sin)}, cos: {jax.typeof(cos)}",
        )
    sin, cos = (lax.expand_dims(table, range(x.ndim - table.ndim)) for table in (sin, cos))
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


@op
def sinusoidal(  # weft: skip(a number decides the last size)
    positions: Num[Array, "*batch"], *, features: int, max_period: float = 10_000.0, dtype: Any = jnp.float32
) -> Float[Array, "*batch features"]:
    """Encodes positions as waves: sines in the first half of the features, cosines in the second.

    Positions may be any numbers, such as the times of a diffusion process.

    Args:
        positions: the positions.
        features: how many waves, an even number.
        max_period: the slowest wave's period over that of the fastest, which is 2 pi.
        dtype: of the result; the angles are float32.

    Raises:
        ConfigError: if there is not an even number of features.

    >>> sinusoidal(jnp.array([0.0, 1.0]), features=2).round(3).tolist()
    [[0.0, 1.0], [0.8410000205039978, 0.5400000214576721]]

    Source: Vaswani et al., "Attention Is All You Need", 2017.
    """
    if features < 2 or features % 2:
        raise ConfigError(f"sinusoidal: features must be even, not {features}", fix="half are sines, half cosines")
    half = features // 2
    angles = _angles(positions.astype(jnp.float32), half, max_period)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1).astype(dtype)


def _angles(places: Array, count: int, base: float) -> Any:
    """Multiplies positions by `count` frequencies, which fall from 1 by equal factors; the next would be `1 / base`."""
    fall = -float(np.log(base)) / max(count, 1)
    frequencies = jnp.exp(jnp.arange(count, dtype=jnp.float32) * fall)
    return jnp.expand_dims(places, -1) * lax.expand_dims(frequencies, range(places.ndim))


@op
def alibi(  # weft: skip(a number decides the size of an axis)
    query: Num[Array, "*batch q"], key: Num[Array, "kv"], *, num_heads: int
) -> Float[Array, "*batch num_heads q kv"]:
    """Returns the bias that ALiBi adds to the logits of attention: minus the distance, times a slope for each head.

    Args:
        query, key: the position of each.
        num_heads: how many heads; their slopes fall by equal factors, from nearly 1 to 1/256.

    >>> alibi(jnp.array([2]), jnp.arange(3), num_heads=2).tolist()
    [[[-0.125, -0.0625, -0.0]], [[-0.0078125, -0.00390625, -0.0]]]

    Source: Press et al., "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation",
    2021.
    """
    # For a number of heads that is no power of two, the paper takes the slopes for the power of two below, and fills up
    # with every second slope for the power above.
    whole = 2 ** (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * i / whole) for i in range(1, whole + 1)]
    slopes += [2.0 ** (-4 * i / whole) for i in range(1, 2 * (num_heads - whole), 2)]
    distance = lax.expand_dims(query, [query.ndim]) - lax.expand_dims(key, range(query.ndim))
    distance = jnp.expand_dims(jnp.abs(distance).astype(jnp.float32), -3)
    # The axis of heads is the third from the end of `distance`.
    not_heads = (*range(query.ndim - 1), query.ndim, query.ndim + 1)
    return -lax.expand_dims(jnp.asarray(slopes, jnp.float32), not_heads) * distance


class ALiBi(Module):
    """Attention with linear biases, an option of `MultiHeadAttention`: attention falls with distance. No parameters.

    >>> from weft.modules import MultiHeadAttention
    >>> attention = MultiHeadAttention(8, 2, causal=True, position_bias=ALiBi(), key=jax.random.key(0))
    >>> attention(jnp.ones((3, 5, 8))).shape
    (3, 5, 8)

    Source: as of `weft.ops.alibi`.
    """

    def __call__(  # weft: skip(a number decides the size of an axis)
        self, query: Num[Array, "*batch q"], key: Num[Array, "kv"], num_heads: int
    ) -> Float[Array, "*batch num_heads q kv"]:
        """Returns the bias for the logits.

        Args:
            query, key: the position of each.
            num_heads: how many heads queries have.
        """
        return alibi(query, key, num_heads=num_heads)


class RoPE(Module):
    """Rotary position embedding, an option of `MultiHeadAttention`.

    It has no parameters. Called as a function, it rotates queries or keys.

    Args:
        base: the slowest pair turns about this many times more slowly than the first.
        scaling: the number that divides positions: 4 allows sequences four times as long as in training.
        interleaved: whether pairs are neighbours, as in the paper, instead of features `i` and `i + half`, as in most
            checkpoints.

    Raises:
        ConfigError: if base or scaling is not positive.

    >>> RoPE()(jnp.ones((2, 1, 2))).round(3).tolist()
    [[[1.0, 1.0]], [[-0.30100002884864807, 1.3820000886917114]]]

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021; Chen et al., "Extending
    Context Window of Large Language Models via Positional Interpolation", 2023.
    """

    base: float = static()
    scaling: float = static()
    interleaved: bool = static()

    def __init__(self, base: float = 10_000.0, *, scaling: float = 1.0, interleaved: bool = False):
        for name, value in (("base", base), ("scaling", scaling)):
            if not value > 0:
                raise ConfigError(f"RoPE: {name} must be positive, not {value}")
        self.base, self.scaling, self.interleaved = float(base), float(scaling), interleaved

    def __call__(
        self, x: Float[Array, "*batch seq heads depth"], positions: Num[Array, "*#batch seq"] | None = None
    ) -> Float[Array, "*batch seq heads depth"]:
        """Rotates queries or keys by their positions.

        Args:
            x: queries or keys.
            positions: of each place; by default 0, 1, 2 and so on.

        Raises:
            AxisError: if the positions are not those of `x`, or the number of features is odd.
        """
        if positions is None:
            # Counted along the axis of the sequence, which is the third from the end: heads and depth follow.
            positions = jnp.arange(x.shape[-3])
        check_places(positions, x.shape[:-2], "RoPE")
        return rope(x, positions, base=self.base, scaling=self.scaling, interleaved=self.interleaved)


def check_places(positions: Any, shape: tuple[Any, ...], owner: str) -> None:
    """Refuses positions whose shape does not fit the sequence.

    Args:
        positions: the positions of the call.
        shape: the axes of batch and sequence.
        owner: the layer, for the error.

    Raises:
        AxisError: naming both shapes.
    """
    own = jnp.shape(positions)
    # The axes of the batch broadcast, and the last one does not: one position for all elements would be a mistake.
    has_sequence = 0 < len(own) <= len(shape) and own[-1] == shape[-1]
    if not has_sequence or any(
        mine not in (1, size) for mine, size in zip(own, shape[len(shape) - len(own) :], strict=True)
    ):
        raise AxisError(
            f"{owner} takes one position for each element of the sequence",
            at=f"positions: {own}, places: {shape}",
            fix="pass positions of shape (seq,), or with the batch axes in front",
        )


def _places(x: Any, offset: Any) -> Array:
    return offset + jnp.arange(x.shape[-2], dtype=jnp.int32)


def _plus_rows(x: Any, rows: Any) -> Any:
    """Adds a vector for each position to a sequence, along the batch axes."""
    # A float32 table would turn bfloat16 activations into float32.
    rows = rows.astype(x.dtype)
    return x + lax.broadcast_in_dim(laid_like(rows, x), x.shape, (x.ndim - 2, x.ndim - 1))


class SinusoidalPositions(Module):
    """Adds waves of the position to each place of a sequence: `y = layer(x)`. It has no parameters.

    Args:
        features: size of the last axis, an even number.
        max_period: see `sinusoidal`.

    Raises:
        ConfigError: if there is not an even number of features.

    >>> SinusoidalPositions(2)(jnp.zeros((2, 2))).round(3).tolist()
    [[0.0, 1.0], [0.8410000205039978, 0.5400000214576721]]

    Source: Vaswani et al., "Attention Is All You Need", 2017.
    """

    features: int = static()
    max_period: float = static()

    def __init__(self, features: int, *, max_period: float = 10_000.0):
        if features < 2 or features % 2:
            raise ConfigError(f"SinusoidalPositions: features must be even, not {features}")
        self.features, self.max_period = features, float(max_period)

    def __call__(
        self, x: Float[Array, "*batch seq features"], *, offset: int | Int[Array, ""] = 0
    ) -> Float[Array, "*batch seq features"]:
        """Adds the waves.

        Args:
            x: the sequence.
            offset: the position of its first place.

        Raises:
            AxisError: if the last axis is not of size `features`, or there is no axis of places.
        """
        check_features(self, x, self.features)
        _check_sequence(self, x)
        return _plus_rows(x, sinusoidal(_places(x, offset), features=self.features, max_period=self.max_period))


class LearnedPositions(Module):
    """Adds a learned vector to each place of a sequence: `y = layer(x)`.

    Args:
        max_length: how many positions there are.
        features: size of the last axis.
        key: a typed key, for the parameters.
        embedding_init: initialiser from `jax.nn.initializers`.
        param_dtype: the dtype of the table.

    >>> layer = LearnedPositions(10, 4, key=jax.random.key(0))
    >>> x = jnp.ones((3, 10, 4))
    >>> bool((layer(x[:, 7:8], offset=7) == layer(x)[:, 7:8]).all())
    True
    """

    embedding: Float[Array, "max_length features"]

    def __init__(
        self,
        max_length: int,
        features: int,
        *,
        key: KeyLike,
        embedding_init: Initializer = default_position_init,
        param_dtype: Any = jnp.float32,
    ):
        check_positive("LearnedPositions", max_length=max_length, features=features)
        (self.embedding,) = draw(key, "LearnedPositions", (embedding_init, (max_length, features), param_dtype))

    def __call__(
        self, x: Float[Array, "*batch seq features"], *, offset: int | Int[Array, ""] = 0
    ) -> Float[Array, "*batch seq features"]:
        """Adds the rows of the table.

        Args:
            x: the sequence.
            offset: the position of its first place. If it is traced, places after the last position are NaN.

        Raises:
            AxisError: if the last axis is not of size `features`, there is no axis of places, or there are more places
                than positions.
        """
        check_features(self, x, self.embedding.shape[-1])
        _check_sequence(self, x)
        length, first = self.embedding.shape[0], known_integer(offset)
        # Symbolic sizes cannot be compared; an exported program is meant for sizes that fit.
        if isinstance(x.shape[-2], int) and isinstance(length, int) and (first or 0) + x.shape[-2] > length:
            raise AxisError(
                f"LearnedPositions has {length} positions, and this sequence needs {(first or 0) + x.shape[-2]}",
                at=f"x: {jax.typeof(x)}, offset: {first}",
                fix="make it with a larger max_length, or cut the sequence",
            )
        if first is not None and first < 0:
            raise AxisError(f"positions count from 0, and this sequence begins at {first}", at=f"offset: {first}")
        places = _places(x, offset)
        # A traced offset may be negative, and indexing would count it from the end. As an index out of range it gives
        # NaN.
        return _plus_rows(x, embed(jnp.where(places < 0, length, places), self.embedding))


def _check_sequence(layer: object, x: Any) -> None:
    if x.ndim < 2:
        raise AxisError(
            f"{type(layer).__qualname__} takes a sequence, an array with axes (*batch, seq, features)",
            at=f"x: {jax.typeof(x)}",
        )


def known_integer(value: Any) -> int | None:
    """Returns the value of an integer, or None if it is traced or an array with axes.

    >>> known_integer(jnp.array(3)), jax.eval_shape(lambda i: known_integer(i), jnp.array(3))
    (3, None)
    """
    return None if isinstance(value, Tracer) or jnp.ndim(value) else int(value)
