"""Per-example gradients clipped and averaged."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def example_loss(w: Float[Array, "d"], x: Float[Array, "d"], y: Float[Array, ""]) -> Float[Array, ""]:
    return (jnp.dot(w, x) - y) ** 2


def private_gradient(w: Float[Array, "d"], xs: Float[Array, "b d"], ys: Float[Array, "b"]) -> Float[Array, "d"]:
    grads = jax.vmap(jax.grad(example_loss), in_axes=(None, 0, 0))(w, xs, ys)
    norms = jnp.linalg.norm(grads, axis=1)
    clipped = grads / jnp.maximum(norms, 1.0)[:, None]
    return clipped.mean(axis=0)  # bug: return clipped.mean(axis=1)


entry = private_gradient


def sample():
    return private_gradient(jnp.ones(4), jnp.ones((4, 4)), jnp.ones(4))
