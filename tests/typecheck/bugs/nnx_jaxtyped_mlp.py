"""Methods under jaxtyping's own decorator, with layers from a list of widths."""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from beartype import beartype
from jaxtyping import Array, Float, jaxtyped
from weft import nnx


class Mlp(nnx.Module):
    def __init__(
        self,
        din: int,
        widths: list[int],
        dout: int,
        activation: Callable = nnx.relu,
        dtype: jnp.dtype = jnp.float32,
        *,
        rngs: nnx.Rngs,
    ):
        sizes = [din, *widths, dout]
        self.layers = nnx.List([nnx.Linear(a, b, dtype=dtype, rngs=rngs) for a, b in itertools.pairwise(sizes)])
        self.activation = activation

    @jaxtyped(typechecker=beartype)
    def __call__(self, x: Float[Array, "*b din"]) -> Float[Array, "*b dout"]:
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


@nnx.jit
@jaxtyped(typechecker=beartype)
def accuracy(model: Mlp, x: Float[Array, "b din"], y: Float[Array, "b dout"]) -> Float[Array, ""]:
    hits = model(x).argmax(axis=-1) == y.argmax(axis=-1)  # bug: hits = model(x).argmax(axis=-1) == y.argmax(axis=0)
    return hits.mean()


entry = accuracy


def sample():
    return accuracy(Mlp(3, [4], 5, rngs=nnx.Rngs(0)), jnp.ones((5, 3)), jnp.ones((5, 5)))
