"""A low-rank adapter on a frozen weight, scaled by a default."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.jit
def lora(
    x: Float[Array, "... i"],
    w: Float[Array, "o i"],
    a: Float[Array, "r i"],
    b: Float[Array, "o r"],
    scale: float = 0.5,
) -> Float[Array, "... o"]:
    return x @ w.T + scale * (x @ a.T) @ b.T  # bug: return x @ w.T + scale * x @ (a @ b).T


entry = lora


def sample():
    return lora(jnp.ones((2, 4)), jnp.ones((4, 4)), jnp.ones((4, 4)), jnp.ones((4, 4)))
