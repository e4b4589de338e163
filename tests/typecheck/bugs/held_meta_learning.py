"""One inner step of MAML, per task."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def task_loss(w: Float[Array, "i o"], x: Float[Array, "b i"], y: Float[Array, "b o"]) -> Float[Array, ""]:
    return jnp.mean((x @ w - y) ** 2)


def adapt(
    w: Float[Array, "i o"], xs: Float[Array, "tasks b i"], ys: Float[Array, "tasks b o"], lr: float = 0.1
) -> Float[Array, "tasks"]:
    def adapted_loss(x, y):
        inner = w - lr * jax.grad(task_loss)(w, x, y)
        return task_loss(inner, x, y)

    return jax.vmap(adapted_loss)(xs, ys)  # bug: return jax.vmap(adapted_loss, in_axes=1)(xs, ys)


entry = adapt


def sample():
    return adapt(jnp.ones((3, 2)), jnp.ones((4, 4, 3)), jnp.ones((4, 4, 2)))
