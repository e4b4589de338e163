"""InfoNCE between two views."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def normalize(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)  # bug: return x / jnp.linalg.norm(x, axis=-1)


def info_nce(a: Float[Array, "b d"], b: Float[Array, "b d"], temperature: float = 0.1) -> Float[Array, ""]:
    logits = normalize(a) @ normalize(b).T / temperature
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(logits, axis=-1)))


entry = info_nce


def sample():
    return info_nce(jnp.ones((4, 4)), jnp.ones((4, 4)))
