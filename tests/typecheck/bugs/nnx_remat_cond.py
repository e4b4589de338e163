"""Early exit by `nnx.cond`, blocks under `nnx.remat`."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
from weft import nnx


class Exit(nnx.Module):
    def __init__(self, d: int, c: int, *, rngs: nnx.Rngs):
        self.body = nnx.Linear(d, d, rngs=rngs)
        self.short = nnx.Linear(d, c, rngs=rngs)
        self.long = nnx.Linear(d, c, rngs=rngs)

    @nnx.remat
    def features(self, x: Float[Array, "b d"]) -> Float[Array, "b d"]:
        return nnx.tanh(self.body(x))

    def __call__(self, x: Float[Array, "b d"], early: Bool[Array, ""]) -> Float[Array, "b c"]:
        return nnx.cond(
            early,
            lambda m, x: m.short(x),
            lambda m, x: m.long(m.features(x)),  # bug: lambda m, x: m.long(m.features(x)).T,
            self,
            x,
        )


entry = Exit


def sample():
    return Exit(3, 4, rngs=nnx.Rngs(0))(jnp.ones((4, 3)), jnp.array(True))
