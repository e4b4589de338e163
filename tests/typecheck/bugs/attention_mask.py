"""A padding mask applied to attention scores."""

from typing import Optional

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def masked_attention(
    q: Float[Array, "b t d"],
    k: Float[Array, "b s d"],
    v: Float[Array, "b s d"],
    mask: Optional[Bool[Array, "b s"]] = None,
) -> Float[Array, "b t d"]:
    scores = jnp.einsum("btd,bsd->bts", q, k)
    if mask is not None:
        scores = jnp.where(mask[:, None, :], scores, -1e9)  # bug: scores = jnp.where(mask[:, :, None], scores, -1e9)
    return jnp.einsum("bts,bsd->btd", jax.nn.softmax(scores, -1), v)


entry = masked_attention


def sample():
    x = jnp.ones((2, 5, 4))
    return masked_attention(x, x, x, jnp.ones((2, 5), bool))
