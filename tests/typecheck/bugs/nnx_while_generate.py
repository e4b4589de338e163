"""Greedy generation by `nnx.while_loop`, with the module in the carry."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from weft import nnx


class Lstm(nnx.Module):
    def __init__(self, v: int, h: int, *, rngs: nnx.Rngs):
        self.embed = nnx.Embed(v, h, rngs=rngs)
        self.gates = nnx.Linear(2 * h, 4 * h, rngs=rngs)
        self.head = nnx.Linear(h, v, rngs=rngs)
        self.count = nnx.Variable(jnp.array(0))
        self.h = h

    def step(
        self, state: tuple[Float[Array, "b h"], Float[Array, "b h"]], ids: Int[Array, "b"]
    ) -> tuple[tuple[Float[Array, "b h"], Float[Array, "b h"]], Float[Array, "b v"]]:
        c, h = state
        i, f, g, o = jnp.split(self.gates(jnp.concatenate([self.embed(ids), h], axis=-1)), 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        self.count[...] += 1
        return (c, h), self.head(h)


def generate(model: Lstm, start: Int[Array, "b"], steps: int = 3) -> Int[Array, "b"]:
    b = start.shape[0]
    zeros = jnp.zeros((b, model.h))

    def cond(carry):
        return carry[3] < steps

    def body(carry):
        model, state, ids, n = carry
        state, logits = model.step(state, ids)
        return model, state, logits.argmax(axis=1), n + 1  # bug: return model, state, logits.argmax(axis=0), n + 1

    return nnx.while_loop(cond, body, (model, (zeros, zeros), start, 0))[2]


entry = generate


def sample():
    return generate(Lstm(4, 3, rngs=nnx.Rngs(0)), jnp.zeros(4, int))
