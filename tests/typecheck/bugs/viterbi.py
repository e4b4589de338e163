"""Viterbi's forward pass over a chain of tags."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def viterbi(
    emissions: Float[Array, "t k"], transitions: Float[Array, "k k"]
) -> tuple[Float[Array, "k"], Int[Array, "t-1 k"]]:
    def step(score, emission):
        paths = score[:, None] + transitions
        return paths.max(axis=0) + emission, paths.argmax(axis=0)

    return jax.lax.scan(step, emissions[0], emissions[1:])  # bug: return jax.lax.scan(step, emissions[0], emissions)


entry = viterbi


def sample():
    return viterbi(jnp.ones((5, 3)), jnp.ones((3, 3)))
