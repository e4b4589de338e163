"""Residual blocks stacked by `nnx.vmap` and run by `nnx.scan`."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Block(nnx.Module):
    up: nnx.Param[Float[Array, "d f"]]
    down: nnx.Param[Float[Array, "f d"]]

    def __init__(self, d: int, f: int, *, rngs: nnx.Rngs):
        self.up = nnx.Param(rngs.params.normal((d, f)))
        self.down = nnx.Param(rngs.params.normal((f, d)))

    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b d"]:
        return x + nnx.gelu(x @ self.up) @ self.down  # bug: return x + nnx.gelu(x @ self.down) @ self.up


class Tower(nnx.Module):
    def __init__(self, depth: int, d: int, f: int, *, rngs: nnx.Rngs):
        @nnx.split_rngs(splits=depth)
        @nnx.vmap
        def make(rngs):
            return Block(d, f, rngs=rngs)

        self.blocks = make(rngs)

    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b d"]:
        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        def run(block, x):
            return block(x)

        return run(self.blocks, x)


entry = Tower


def sample():
    return Tower(3, 4, 4, rngs=nnx.Rngs(0))(jnp.ones((2, 4)))
