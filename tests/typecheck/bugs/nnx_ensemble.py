"""An ensemble made by `nnx.vmap` over a constructor."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Member(nnx.Module):
    w: nnx.Param[Float[Array, "i o"]]

    def __init__(self, i: int, o: int, *, rngs: nnx.Rngs):
        self.w = nnx.Param(rngs.params.normal((i, o)))

    def __call__(self, x: Float[Array, "b i"]) -> Float[Array, "b o"]:
        return jnp.tanh(x @ self.w)


class Ensemble(nnx.Module):
    def __init__(self, members: int, i: int, o: int, *, rngs: nnx.Rngs):
        @nnx.split_rngs(splits=members)
        @nnx.vmap
        def make(rngs):
            return Member(i, o, rngs=rngs)

        self.models = make(rngs)

    def predict(self, x: Float[Array, "b i"]) -> tuple[Float[Array, "b o"], Float[Array, "b o"]]:
        ys = nnx.vmap(lambda model, x: model(x), in_axes=(0, None))(self.models, x)
        return ys.mean(axis=0), ys.std(axis=0)  # bug: return ys.mean(axis=0), ys.std(axis=1)


entry = Ensemble


def sample():
    return Ensemble(4, 3, 2, rngs=nnx.Rngs(0)).predict(jnp.ones((4, 3)))
