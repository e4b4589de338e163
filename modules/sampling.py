"""Choosing from logits: the pure ops `keep_top_k` and `keep_top_p`, for `jax.random.categorical`.

Both return logits, so one can follow the other, and a temperature is a division: `keep_top_p(logits / 0.8, 0.9)`. The
guide on generation has the loop around them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float
from weft.modules.construct import ConfigError, is_count
from weft.modules.op import op


@op("k")
def keep_top_k(logits: Float[Array, "*batch vocab"], k: int) -> Float[Array, "*batch vocab"]:
    """Keeps the logits of the `k` most likely choices, and sets the others to minus infinity.

    Args:
        logits: any numbers that `softmax` takes.
        k: how many choices stay; all if there are fewer. Choices as likely as the last one of these stay, too.

    Raises:
        ConfigError: if `k` is not a positive integer.

    >>> keep_top_k(jnp.array([1.0, 3.0, 2.0]), k=2).tolist()
    [-inf, 3.0, 2.0]

    Source: Fan et al., "Hierarchical Neural Story Generation", 2018.
    """
    if not is_count(k) or k < 1:
        raise ConfigError(f"keep_top_k keeps a positive number of choices, not {k!r}")
    # `top_k` refuses a `k` above the size of the axis.
    least = lax.top_k(logits, min(k, logits.shape[-1]))[0][..., -1:]
    return jnp.where(logits >= least, logits, -jnp.inf)


@op
def keep_top_p(logits: Float[Array, "*batch vocab"], p: float | Float[Array, ""]) -> Float[Array, "*batch vocab"]:
    """Keeps the most likely choices that together reach the probability `p`; sets the others to minus infinity.

    Args:
        logits: any numbers that `softmax` takes.
        p: the probability to reach, from 0, which keeps the most likely choice, to 1, which keeps all. Choices that are
            as likely as the last one stay, too.

    >>> jax.nn.softmax(keep_top_p(jnp.log(jnp.array([0.5, 0.25, 0.25, 0.0])), p=0.3)).tolist()
    [1.0, 0.0, 0.0, 0.0]

    Source: Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019.
    """
    # In bfloat16 a sum over a vocabulary stands still long before it reaches `p`.
    probabilities = jax.nn.softmax(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))
    falling = lax.rev(jnp.sort(probabilities), [logits.ndim - 1])
    before = jnp.cumsum(falling, -1) - falling
    # The most likely choice always stays, for p=0 too: logits that are all minus infinity would be NaN in softmax.
    reached = (before < p).at[..., 0].set(True)
    least = jnp.min(jnp.where(reached, falling, jnp.inf), -1, keepdims=True)
    return jnp.where(probabilities >= least, logits, -jnp.inf)
