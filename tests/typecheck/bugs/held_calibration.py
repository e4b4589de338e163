"""Expected calibration error, with bins as a static argument."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def calibration(probs: Float[Array, "n c"], labels: Int[Array, "n"], bins: int = 10) -> Float[Array, ""]:
    confidence = probs.max(axis=-1)  # bug: confidence = probs.max(axis=-1, keepdims=True)
    correct = probs.argmax(axis=-1) == labels
    which = jnp.clip((confidence * bins).astype(int), 0, bins - 1)
    onehot = jax.nn.one_hot(which, bins)  # bug: onehot = jax.nn.one_hot(which[:, 0], bins)
    count = onehot.sum(axis=0)
    gap = jnp.abs((onehot * (correct - confidence)[:, None]).sum(axis=0))  # bug: gap = jnp.abs((onehot * (correct - confidence).mean(axis=-1)[:, None]).sum(axis=0))
    return (gap / jnp.maximum(count, 1)).sum()


entry = calibration


def sample():
    return calibration(jnp.ones((4, 3)) / 3, jnp.zeros(4, int))
