"""Spectral normalisation: power iterations on a Variable in `nnx.fori_loop`."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Spectral(nnx.Module):
    w: nnx.Param[Float[Array, "m n"]]
    u: nnx.BatchStat[Float[Array, "m"]]

    def __init__(self, m: int, n: int, *, rngs: nnx.Rngs):
        self.w = nnx.Param(rngs.params.normal((m, n)))
        self.u = nnx.BatchStat(rngs.params.normal((m,)))

    def __call__(self, x: Float[Array, "b m"]) -> Float[Array, "b n"]:
        def iterate(_, module):
            v = module.u @ module.w
            u = module.w @ (v / jnp.linalg.norm(v))  # bug: u = (v / jnp.linalg.norm(v)) @ module.w
            module.u[...] = u / jnp.linalg.norm(u)
            return module

        nnx.fori_loop(0, 2, iterate, self)
        return x @ self.w / jnp.linalg.norm(self.u @ self.w)


entry = Spectral


def sample():
    return Spectral(4, 4, rngs=nnx.Rngs(0))(jnp.ones((2, 4)))
