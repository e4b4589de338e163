"""A low-rank adapter beside a frozen layer."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Lora(nnx.Module):
    a: nnx.LoRAParam[Float[Array, "din rank"]]
    b: nnx.LoRAParam[Float[Array, "rank dout"]]

    def __init__(self, din: int, rank: int, dout: int, *, rngs: nnx.Rngs):
        self.base = nnx.Linear(din, dout, rngs=rngs)
        self.a = nnx.LoRAParam(rngs.params.normal((din, rank)))
        self.b = nnx.LoRAParam(jnp.zeros((rank, dout)))

    def __call__(self, x: Float[Array, "b din"]) -> Float[Array, "b dout"]:
        return self.base(x) + x @ self.a @ self.b  # bug: return self.base(x) + x @ self.b.T @ self.a.T


entry = Lora


def sample():
    return Lora(6, 2, 6, rngs=nnx.Rngs(0))(jnp.ones((3, 6)))
