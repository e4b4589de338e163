"""Negative log likelihood by plain indexing."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def nll(logits: Float[Array, "batch classes"], labels: Int[Array, "batch"]) -> Float[Array, ""]:
    logp = jax.nn.log_softmax(logits, axis=-1)
    return -jnp.mean(logp[jnp.arange(labels.shape[0]), labels])  # bug: return -jnp.mean(logp[:, labels])


entry = nll


def sample():
    return nll(jnp.ones((3, 5)), jnp.zeros(3, int))
