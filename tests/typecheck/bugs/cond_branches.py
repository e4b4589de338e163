"""A gradient step that is skipped when the gradient is not finite."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def maybe_step(
    w: Float[Array, "i o"], x: Float[Array, "b i"], g: Float[Array, "b o"], finite: Bool[Array, ""]
) -> Float[Array, "i o"]:
    def step(w):
        return w - 0.1 * x.T @ g  # bug: return w - 0.1 * g.T @ x

    return jax.lax.cond(finite, step, lambda w: w, w)


entry = maybe_step


def sample():
    return maybe_step(jnp.ones((3, 3)), jnp.ones((2, 3)), jnp.ones((2, 3)), jnp.array(True))
