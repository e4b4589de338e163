"""The posterior mean of a Gaussian process."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def rbf(a: Float[Array, "n d"], b: Float[Array, "m d"], scale: float = 1.0) -> Float[Array, "n m"]:
    sq = jnp.sum(a**2, -1)[:, None] + jnp.sum(b**2, -1) - 2 * a @ b.T
    return jnp.exp(-0.5 * sq / scale**2)


def posterior_mean(
    x: Float[Array, "n d"], y: Float[Array, "n"], x_new: Float[Array, "m d"], noise: float = 1e-2
) -> Float[Array, "m"]:
    gram = rbf(x, x) + noise * jnp.eye(x.shape[0])
    return rbf(x_new, x) @ jnp.linalg.solve(gram, y)  # bug: return rbf(x, x_new) @ jnp.linalg.solve(gram, y)


entry = posterior_mean


def sample():
    return posterior_mean(jnp.ones((4, 2)), jnp.ones(4), jnp.ones((4, 2)))
