"""Tied input and output embeddings with an optional bias."""

from typing import Optional

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Tied(eqx.Module):
    table: Float[Array, "vocab dim"]
    bias: Optional[Float[Array, "vocab"]] = None

    def encode(self, ids: Int[Array, "*batch"]) -> Float[Array, "*batch dim"]:
        return self.table[ids]

    def decode(self, h: Float[Array, "*batch dim"]) -> Float[Array, "*batch vocab"]:
        logits = h @ self.table.T  # bug: logits = h @ self.table
        return logits if self.bias is None else logits + self.bias


entry = Tied(jnp.ones((6, 6)), jnp.zeros(6))


def sample():
    return entry.decode(entry.encode(jnp.zeros((2, 3), int)))
