"""SGD with momentum over a PyTree of parameters of one structure."""

from typing import Tuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


def momentum_step(
    params: PyTree[Float[Array, "..."], "T"],
    grads: PyTree[Float[Array, "..."], "T"],
    velocity: PyTree[Float[Array, "..."], "T"],
    lr: float = 0.1,
) -> Tuple[PyTree[Float[Array, "..."], "T"], PyTree[Float[Array, "..."], "T"]]:
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    new = jax.tree.map(lambda p, v: p - lr * v, params, velocity)
    return new, velocity  # bug: return jax.tree.leaves(new), velocity


entry = momentum_step


def sample():
    tree = {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}
    return momentum_step(tree, tree, tree)
