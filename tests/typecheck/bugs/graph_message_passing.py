"""Messages from senders summed at receivers."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def message_pass(
    nodes: Float[Array, "n d"],
    senders: Int[Array, "e"],
    receivers: Int[Array, "e"],
    w: Float[Array, "d out"],
) -> Float[Array, "n out"]:
    messages = nodes[senders] @ w
    return jax.ops.segment_sum(messages, receivers, num_segments=nodes.shape[0])  # bug: return jax.ops.segment_sum(messages, receivers, num_segments=senders.shape[0])


entry = message_pass


def sample():
    return message_pass(jnp.ones((5, 3)), jnp.zeros(5, int), jnp.zeros(5, int), jnp.ones((3, 2)))
