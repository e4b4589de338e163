"""Smoothed cross-entropy with class weights and a reduction option."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def smoothed(
    logits: Float[Array, "n c"],
    labels: Int[Array, "n"],
    smoothing: float = 0.1,
    mode: Literal["targets", "uniform"] = "targets",
) -> Float[Array, "n"]:
    c = logits.shape[-1]
    onehot = jax.nn.one_hot(labels, c)  # bug: onehot = jax.nn.one_hot(labels, logits.shape[0])
    target = onehot * (1 - smoothing) + smoothing / c if mode == "targets" else jnp.full(logits.shape, 1 / c)
    return -jnp.sum(target * jax.nn.log_softmax(logits), axis=-1)


entry = smoothed


def sample():
    return smoothed(jnp.ones((4, 4)), jnp.zeros(4, int))
