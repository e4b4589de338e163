"""Token and position embeddings."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from weft import nnx


class Embedder(nnx.Module):
    positions: nnx.Param[Float[Array, "max_len d"]]

    def __init__(self, vocab: int, max_len: int, d: int, *, rngs: nnx.Rngs):
        self.tokens = nnx.Embed(vocab, d, rngs=rngs)
        self.positions = nnx.Param(rngs.params.normal((max_len, d)))

    def __call__(self, ids: Int[Array, "b s"]) -> Float[Array, "b s d"]:
        return self.tokens(ids) + self.positions[: ids.shape[1]]  # bug: return self.tokens(ids) + self.positions[: ids.shape[1], None]

    def attend(self, x: Float[Array, "b s d"]) -> Float[Array, "b s vocab"]:
        return self.tokens.attend(x)


entry = Embedder


def sample():
    return Embedder(11, 7, 4, rngs=nnx.Rngs(0))(jnp.zeros((5, 5), int))
