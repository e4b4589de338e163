"""A confusion matrix, counts of (true, predicted)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def recall(logits: Float[Array, "b c"], labels: Int[Array, "b"]) -> Float[Array, "c"]:
    c = logits.shape[-1]
    predicted = jax.nn.one_hot(logits.argmax(-1), c)
    true = jax.nn.one_hot(labels, c)
    confusion = true.T @ predicted  # bug: confusion = true @ predicted.T
    return jnp.diag(confusion) / confusion.sum(axis=1)


entry = recall


def sample():
    return recall(jnp.ones((4, 4)), jnp.zeros(4, int))
