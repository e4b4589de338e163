"""Recall at k of a retrieval model."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def recall_at_k(
    queries: Float[Array, "q d"], docs: Float[Array, "n d"], relevant: Int[Array, "q"], k: int
) -> Float[Array, ""]:
    scores = queries @ docs.T
    _, top = jax.lax.top_k(scores, k)
    hits: Bool[Array, "q k"] = top == relevant[:, None]  # bug: hits = top == relevant
    return hits.any(axis=1).mean()


entry = recall_at_k


def sample():
    return recall_at_k(jnp.ones((4, 3)), jnp.ones((9, 3)), jnp.zeros(4, int), 4)
