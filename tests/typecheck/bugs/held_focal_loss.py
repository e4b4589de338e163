"""Focal loss of dense detection."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def focal(
    logits: Float[Array, "b a c"], targets: Int[Array, "b a"], weights: Float[Array, "c"], gamma: float = 2.0
) -> Float[Array, ""]:
    probs = jax.nn.softmax(logits)
    target = jax.nn.one_hot(targets, logits.shape[-1])
    pt = jnp.sum(probs * target, axis=-1)
    alpha = weights[targets]
    loss = -alpha * (1 - pt) ** gamma * jnp.log(pt + 1e-8)  # bug: loss = -alpha[..., None] * (1 - pt) ** gamma * jnp.log(pt + 1e-8)
    return loss.sum() / logits.shape[0]


entry = focal


def sample():
    return focal(jnp.ones((3, 3, 4)), jnp.zeros((3, 3), int), jnp.ones(4))
