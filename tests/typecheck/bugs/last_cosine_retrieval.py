"""Hard-negative mining from a similarity matrix."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def triplet_loss(
    anchors: Float[Array, "b d"], positives: Float[Array, "b d"], negatives: Float[Array, "m d"], margin: float = 0.2
) -> Float[Array, ""]:
    positive = jnp.sum(anchors * positives, axis=-1)
    negative = jnp.max(anchors @ negatives.T, axis=1)  # bug: negative = jnp.max(anchors @ negatives.T, axis=0)
    return jnp.mean(jax.nn.relu(margin + negative - positive))


entry = triplet_loss


def sample():
    return triplet_loss(jnp.ones((4, 3)), jnp.ones((4, 3)), jnp.ones((4, 3)))
