"""Adam over a pytree of parameters."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


class Params(NamedTuple):
    w: Float[Array, "i o"]
    b: Float[Array, "o"]


def adam(params: Params, grads: Params, m: Params, v: Params, lr: float = 1e-3) -> tuple[Params, Params, Params]:
    m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, m, grads)
    v = jax.tree.map(lambda a, g: 0.99 * a + 0.01 * g * g, v, grads)
    new = jax.tree.map(lambda p, a, s: p - lr * a / (jnp.sqrt(s) + 1e-8), params, m, v)  # bug: new = Params(params.w - lr * (m.w / jnp.sqrt(v.w)).T, params.b - lr * m.b)
    return new, m, v


entry = adam


def sample():
    p = Params(jnp.ones((4, 4)), jnp.ones(4))
    return adam(p, p, p, p)
