"""Attention from one sequence to another, through `nnx.MultiHeadAttention`."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Decoder(nnx.Module):
    def __init__(self, d: int, heads: int, vocab: int, *, rngs: nnx.Rngs):
        self.attention = nnx.MultiHeadAttention(heads, d, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(d, rngs=rngs)
        self.head = nnx.Linear(d, vocab, rngs=rngs)

    def __call__(self, x: Float[Array, "b q d"], memory: Float[Array, "b k d"]) -> Float[Array, "b q vocab"]:
        y = self.attention(self.norm(x), memory)  # bug: y = self.attention(memory, self.norm(x))
        return self.head(x + y)


entry = Decoder


def sample():
    return Decoder(8, 2, 5, rngs=nnx.Rngs(0))(jnp.ones((2, 4, 8)), jnp.ones((2, 4, 8)))
