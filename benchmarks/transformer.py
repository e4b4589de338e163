"""One transformer, written once in each way that the tracing benchmark compares.

Pre-norm blocks, causal attention by einsum over four Linear projections, a gelu MLP of four times the width, learned
positions, and the mean cross-entropy of the next token. Each `*_program(size)` gives a loss of (parameters or model,
tokens) and its first argument; all compute the same thing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import weft
from flax import nnx
from weft.modules.dense.linear import Embed, Linear
from weft.modules.norms.norm import LayerNorm

Program = tuple[Callable[[Any, jax.Array], jax.Array], Any]


@dataclass(frozen=True)
class Size:
    """Sizes of the transformer and of its batch."""

    layers: int = 12
    width: int = 64
    heads: int = 4
    vocab: int = 128
    batch: int = 4
    length: int = 16


def tokens(size: Size) -> jax.Array:
    return jnp.zeros((size.batch, size.length + 1), jnp.int32)


def attend(q: jax.Array, k: jax.Array, v: jax.Array, heads: int) -> jax.Array:
    """Causal attention over (..., length, width)."""
    q, k, v = (x.reshape(*x.shape[:-1], heads, -1) for x in (q, k, v))
    scores = jnp.einsum("...qhd,...khd->...hqk", q, k) / q.shape[-1] ** 0.5
    causal = jnp.tril(jnp.ones((q.shape[-3], q.shape[-3]), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return jnp.einsum("...hqk,...khd->...qhd", weights, v).reshape(*v.shape[:-2], -1)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean negative log-likelihood of the labels."""
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -picked.mean()


# Plain jnp, parameters in dicts.


def jnp_program(size: Size) -> Program:
    keys = iter(jax.random.split(jax.random.key(0), 6 * size.layers + 3))

    def linear(inputs: int, outputs: int) -> dict[str, jax.Array]:
        return {"w": jax.random.normal(next(keys), (inputs, outputs)) * inputs**-0.5, "b": jnp.zeros(outputs)}

    def norm() -> dict[str, jax.Array]:
        return {"scale": jnp.ones(size.width), "bias": jnp.zeros(size.width)}

    def block() -> dict[str, Any]:
        w = size.width
        projections = {name: linear(w, w) for name in "qkvo"}
        return {"n1": norm(), "n2": norm(), **projections, "up": linear(w, 4 * w), "down": linear(4 * w, w)}

    params = {
        "embed": jax.random.normal(next(keys), (size.vocab, size.width)),
        "positions": jax.random.normal(next(keys), (size.length, size.width)),
        "blocks": [block() for _ in range(size.layers)],
        "norm": norm(),
        "out": linear(size.width, size.vocab),
    }

    def apply(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return x @ p["w"] + p["b"]

    def normalise(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        mean = x.mean(-1, keepdims=True)
        variance = jnp.square(x - mean).mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]

    def loss(params: dict[str, Any], tokens: jax.Array) -> jax.Array:
        x = params["embed"][tokens[:, :-1]] + params["positions"]
        for p in params["blocks"]:
            h = normalise(p["n1"], x)
            x = x + apply(p["o"], attend(apply(p["q"], h), apply(p["k"], h), apply(p["v"], h), size.heads))
            x = x + apply(p["down"], jax.nn.gelu(apply(p["up"], normalise(p["n2"], x))))
        return cross_entropy(apply(params["out"], normalise(params["norm"], x)), tokens[:, 1:])

    return loss, params


# Equinox: layers take one vector, so they are mapped over the axes before it.


class EqxBlock(eqx.Module):
    n1: eqx.nn.LayerNorm
    n2: eqx.nn.LayerNorm
    q: eqx.nn.Linear
    k: eqx.nn.Linear
    v: eqx.nn.Linear
    o: eqx.nn.Linear
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    heads: int = eqx.field(static=True)

    def __init__(self, size: Size, key: jax.Array):
        keys, w = jax.random.split(key, 6), size.width
        self.n1, self.n2 = eqx.nn.LayerNorm(w), eqx.nn.LayerNorm(w)
        self.q, self.k, self.v, self.o = (eqx.nn.Linear(w, w, key=key) for key in keys[:4])
        self.up, self.down = eqx.nn.Linear(w, 4 * w, key=keys[4]), eqx.nn.Linear(4 * w, w, key=keys[5])
        self.heads = size.heads

    def __call__(self, x: jax.Array) -> jax.Array:
        h = jax.vmap(self.n1)(x)
        q, k, v = (jax.vmap(layer)(h) for layer in (self.q, self.k, self.v))
        x = x + jax.vmap(self.o)(attend(q, k, v, self.heads))
        h = jax.vmap(self.up)(jax.vmap(self.n2)(x))
        return x + jax.vmap(self.down)(jax.nn.gelu(h))


class EqxTransformer(eqx.Module):
    embed: eqx.nn.Embedding
    positions: jax.Array
    blocks: list[EqxBlock]
    norm: eqx.nn.LayerNorm
    out: eqx.nn.Linear

    def __init__(self, size: Size, key: jax.Array):
        first, second, third, *keys = jax.random.split(key, 3 + size.layers)
        self.embed = eqx.nn.Embedding(size.vocab, size.width, key=first)
        self.positions = jax.random.normal(second, (size.length, size.width))
        self.blocks = [EqxBlock(size, key) for key in keys]
        self.norm, self.out = eqx.nn.LayerNorm(size.width), eqx.nn.Linear(size.width, size.vocab, key=third)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = jax.vmap(self.embed)(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.out)(jax.vmap(self.norm)(x))


def eqx_program(size: Size) -> Program:
    def loss(model: EqxTransformer, tokens: jax.Array) -> jax.Array:
        return cross_entropy(jax.vmap(model)(tokens[:, :-1]), tokens[:, 1:])

    return loss, EqxTransformer(size, jax.random.key(0))


# weft: records, whose layers keep any leading axes.


class Block(weft.Module):
    n1: LayerNorm
    n2: LayerNorm
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    up: Linear
    down: Linear
    heads: int = weft.static()

    def __init__(self, size: Size, key: jax.Array):
        keys, w = jax.random.split(key, 6), size.width
        self.n1, self.n2 = LayerNorm(w), LayerNorm(w)
        self.q, self.k, self.v, self.o = (Linear(w, w, key=key) for key in keys[:4])
        self.up, self.down = Linear(w, 4 * w, key=keys[4]), Linear(4 * w, w, key=keys[5])
        self.heads = size.heads

    def __call__(self, x: jax.Array) -> jax.Array:
        h = self.n1(x)
        x = x + self.o(attend(self.q(h), self.k(h), self.v(h), self.heads))
        return x + self.down(jax.nn.gelu(self.up(self.n2(x))))


class Transformer(weft.Module):
    embed: Embed
    positions: jax.Array
    blocks: tuple[Block, ...]
    norm: LayerNorm
    out: Linear

    def __init__(self, size: Size, key: jax.Array):
        first, second, third, *keys = jax.random.split(key, 3 + size.layers)
        self.embed = Embed(size.vocab, size.width, key=first)
        self.positions = jax.random.normal(second, (size.length, size.width))
        self.blocks = tuple(Block(size, key) for key in keys)
        self.norm, self.out = LayerNorm(size.width), Linear(size.width, size.vocab, key=third)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


def weft_program(size: Size) -> Program:
    def loss(model: Transformer, tokens: jax.Array) -> jax.Array:
        return cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])

    return loss, Transformer(size, jax.random.key(0))


# flax.nnx, or whatever offers its interface.


def nnx_program(lib: Any, size: Size) -> Program:
    rngs = lib.Rngs(0)

    class Block(lib.Module):
        def __init__(self):
            w = size.width
            self.n1, self.n2 = lib.LayerNorm(w, rngs=rngs), lib.LayerNorm(w, rngs=rngs)
            self.q, self.k = lib.Linear(w, w, rngs=rngs), lib.Linear(w, w, rngs=rngs)
            self.v, self.o = lib.Linear(w, w, rngs=rngs), lib.Linear(w, w, rngs=rngs)
            self.up, self.down = lib.Linear(w, 4 * w, rngs=rngs), lib.Linear(4 * w, w, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            h = self.n1(x)
            x = x + self.o(attend(self.q(h), self.k(h), self.v(h), size.heads))
            return x + self.down(jax.nn.gelu(self.up(self.n2(x))))

    class Transformer(lib.Module):
        def __init__(self):
            self.embed = lib.Embed(size.vocab, size.width, rngs=rngs)
            self.positions = lib.Param(jax.random.normal(rngs.params(), (size.length, size.width)))
            self.blocks = lib.List([Block() for _ in range(size.layers)])
            self.norm = lib.LayerNorm(size.width, rngs=rngs)
            self.out = lib.Linear(size.width, size.vocab, rngs=rngs)

        def __call__(self, tokens: jax.Array) -> jax.Array:
            x = self.embed(tokens) + self.positions[...]
            for block in self.blocks:
                x = block(x)
            return self.out(self.norm(x))

    def loss(model: Any, tokens: jax.Array) -> jax.Array:
        return cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])

    return loss, Transformer()


def flax_program(size: Size) -> Program:
    return nnx_program(nnx, size)
