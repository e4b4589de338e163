"""Cross-entropy with integer labels."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def cross_entropy(logits: Float[Array, "b c"], labels: Int[Array, "b"]) -> Float[Array, "b"]:
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    picked = jnp.take_along_axis(log_probs, labels[:, None], axis=-1)  # bug: picked = jnp.take_along_axis(log_probs, labels[None, :], axis=0)
    return -picked[:, 0]  # bug: return -picked[0]


entry = cross_entropy


def sample():
    return cross_entropy(jnp.ones((4, 4)), jnp.zeros(4, int))
