"""The functional style: a model taken apart, and its gradient by `jax.grad`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Head(nnx.Module):
    w: nnx.Param[Float[Array, "d k"]]

    def __init__(self, d: int, k: int, *, rngs: nnx.Rngs):
        self.w = nnx.Param(rngs.params.normal((d, k)))

    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b k"]:
        return x @ self.w


def gradient_norms(model: Head, x: Float[Array, "b d"], y: Float[Array, "b k"]) -> Float[Array, "b"]:
    graphdef, params = nnx.split(model)

    def loss(params, x, y):
        return jnp.sum((nnx.merge(graphdef, params)(x[None])[0] - y) ** 2)

    grads = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, x, y)
    squares = jax.tree.map(lambda g: jnp.sum(g**2, axis=(1, 2)), grads)  # bug: squares = jax.tree.map(lambda g: jnp.sum(g**2, axis=(0, 1)), grads)
    return jnp.sqrt(sum(jax.tree.leaves(squares)))


entry = gradient_norms


def sample():
    return gradient_norms(Head(3, 4, rngs=nnx.Rngs(0)), jnp.ones((4, 3)), jnp.ones((4, 4)))
