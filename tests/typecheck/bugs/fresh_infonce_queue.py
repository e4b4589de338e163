"""Momentum contrast with a queue of negatives."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def moco_loss(
    q: Float[Array, "n c"], k: Float[Array, "n c"], queue: Float[Array, "c size"], ptr: Int[Array, ""], tau: float = 0.2
) -> tuple[Float[Array, ""], Float[Array, "c size"]]:
    pos = jnp.sum(q * k, axis=1, keepdims=True)
    neg = q @ queue
    logits = jnp.concatenate([pos, neg], axis=1) / tau
    loss = -jnp.mean(jax.nn.log_softmax(logits, axis=1)[:, 0])
    queue = jax.lax.dynamic_update_slice(queue, k.T, (0, ptr))  # bug: queue = jax.lax.dynamic_update_slice(queue, k, (0, ptr))
    return loss, queue


entry = moco_loss


def sample():
    return moco_loss(jnp.ones((4, 4)), jnp.ones((4, 4)), jnp.ones((4, 16)), jnp.array(0))
