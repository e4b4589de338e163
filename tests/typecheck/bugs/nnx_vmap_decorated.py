"""A per-example function under `nnx.vmap`, and the batch that calls it."""

import functools

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Kernel(nnx.Module):
    centres: nnx.Param[Float[Array, "m d"]]

    def __init__(self, m: int, d: int, *, rngs: nnx.Rngs):
        self.centres = nnx.Param(rngs.params.normal((m, d)))

    @functools.partial(nnx.vmap, in_axes=(None, 0))
    def features(self, x: Float[Array, "d"]) -> Float[Array, "m"]:
        return jnp.exp(-((self.centres - x) ** 2).sum(-1))  # bug: return jnp.exp(-((self.centres - x) ** 2).sum(0))


def gram(kernel: Kernel, x: Float[Array, "n d"]) -> Float[Array, "n n"]:
    f = kernel.features(x)
    return f @ f.T


entry = Kernel


def sample():
    return gram(Kernel(4, 4, rngs=nnx.Rngs(0)), jnp.ones((5, 4)))
