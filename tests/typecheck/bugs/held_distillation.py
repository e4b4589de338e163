"""Distillation: soft targets of a teacher, with optional hard labels."""

from typing import Optional

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def distill(
    student: Float[Array, "b c"],
    teacher: Float[Array, "b c"],
    labels: Optional[Int[Array, "b"]] = None,
    temperature: float = 2.0,
) -> Float[Array, "b"]:
    soft = jax.nn.softmax(teacher / temperature, axis=-1)
    loss = -jnp.sum(soft * jax.nn.log_softmax(student / temperature), axis=-1)
    if labels is not None:
        log_probs = jax.nn.log_softmax(student)
        loss = loss - log_probs[jnp.arange(labels.shape[0]), labels]  # bug: loss = loss - log_probs[labels]
    return loss


entry = distill


def sample():
    return distill(jnp.ones((4, 5)), jnp.ones((4, 5)))
