"""Dynamic routing between capsules under fori_loop."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def squash(s: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    sq = jnp.sum(s**2, axis=-1, keepdims=True)
    return sq / (1 + sq) * s / jnp.sqrt(sq + 1e-8)


def routing(votes: Float[Array, "i o d"], steps: int = 3) -> Float[Array, "o d"]:
    def body(_, logits: Float[Array, "i o"]) -> Float[Array, "i o"]:
        coupling = jax.nn.softmax(logits, axis=1)
        out = squash(jnp.einsum("io,iod->od", coupling, votes))
        return logits + jnp.einsum("iod,od->io", votes, out)  # bug: return logits + jnp.einsum("iod,od->oi", votes, out)

    logits = jax.lax.fori_loop(0, steps, body, jnp.zeros(votes.shape[:2]))
    return squash(jnp.einsum("io,iod->od", jax.nn.softmax(logits, axis=1), votes))


entry = routing


def sample():
    return routing(jnp.ones((4, 4, 3)))
