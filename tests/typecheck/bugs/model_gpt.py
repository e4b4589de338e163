"""A small language model, whole: positions up to a context, heads that divide the width, a loss over a batch."""

import math
from typing import Optional

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray


class Attention(eqx.Module):
    wq: eqx.nn.Linear
    wk: eqx.nn.Linear
    wv: eqx.nn.Linear
    wo: eqx.nn.Linear
    n_heads: int = eqx.field(static=True)

    def __init__(self, dim: int, n_heads: int, *, key: PRNGKeyArray):
        ks = jax.random.split(key, 4)
        self.wq, self.wk, self.wv, self.wo = (eqx.nn.Linear(dim, dim, use_bias=False, key=k) for k in ks)
        self.n_heads = n_heads

    def __call__(self, x: Float[Array, "seq dim"], mask: Optional[Bool[Array, "seq seq"]] = None) -> Float[Array, "seq dim"]:
        seq, dim = x.shape
        hd = dim // self.n_heads
        q = jax.vmap(self.wq)(x).reshape(seq, self.n_heads, hd)
        k = jax.vmap(self.wk)(x).reshape(seq, self.n_heads, hd)
        v = jax.vmap(self.wv)(x).reshape(seq, self.n_heads, hd)
        scores = jnp.einsum("qhd,khd->hqk", q, k) / math.sqrt(hd)
        if mask is not None:
            scores = jnp.where(mask[None], scores, jnp.finfo(scores.dtype).min)
        out = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores, axis=-1), v)
        return jax.vmap(self.wo)(out.reshape(seq, dim))


class Block(eqx.Module):
    attn: Attention
    ln1: eqx.nn.LayerNorm
    ln2: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self, dim: int, n_heads: int, *, key: PRNGKeyArray):
        k1, k2, k3 = jax.random.split(key, 3)
        self.attn = Attention(dim, n_heads, key=k1)
        self.ln1 = eqx.nn.LayerNorm(dim)
        self.ln2 = eqx.nn.LayerNorm(dim)
        self.up = eqx.nn.Linear(dim, 4 * dim, key=k2)
        self.down = eqx.nn.Linear(4 * dim, dim, key=k3)
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, x: Float[Array, "seq dim"], mask: Bool[Array, "seq seq"], *, key: Optional[PRNGKeyArray] = None) -> Float[Array, "seq dim"]:
        k1, k2 = (None, None) if key is None else jax.random.split(key)
        x = x + self.dropout(self.attn(jax.vmap(self.ln1)(x), mask), key=k1, inference=key is None)
        h = jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.ln2)(x))))
        return x + self.dropout(h, key=k2, inference=key is None)


class GPT(eqx.Module):
    tok: Float[Array, "vocab dim"]
    pos: Float[Array, "ctx dim"]
    blocks: list[Block]
    ln: eqx.nn.LayerNorm

    def __init__(self, vocab: int, ctx: int, dim: int, n_heads: int, depth: int, *, key: PRNGKeyArray):
        k1, k2, *ks = jax.random.split(key, depth + 2)
        self.tok = jax.random.normal(k1, (vocab, dim)) * 0.02
        self.pos = jax.random.normal(k2, (ctx, dim)) * 0.02
        self.blocks = [Block(dim, n_heads, key=k) for k in ks]
        self.ln = eqx.nn.LayerNorm(dim)

    def __call__(self, tokens: Int[Array, "seq"], *, key: Optional[PRNGKeyArray] = None) -> Float[Array, "seq vocab"]:
        seq = tokens.shape[0]
        x = self.tok[tokens] + self.pos[:seq]
        mask = jnp.tril(jnp.ones((seq, seq), dtype=bool))
        keys = [None] * len(self.blocks) if key is None else jax.random.split(key, len(self.blocks))
        for block, k in zip(self.blocks, keys, strict=True):
            x = block(x, mask, key=k)
        return jax.vmap(self.ln)(x) @ self.tok.T


def loss_fn(model: GPT, tokens: Int[Array, "batch seq"], key: PRNGKeyArray) -> Float[Array, ""]:
    keys = jax.random.split(key, tokens.shape[0])
    logits = jax.vmap(lambda t, k: model(t, key=k))(tokens[:, :-1], keys)
    logp = jax.nn.log_softmax(logits)  # bug: logp = jax.nn.log_softmax(logits)[:, 1:]
    return -jnp.take_along_axis(logp, tokens[:, 1:, None], axis=-1).mean()


entry = loss_fn


def sample():
    model = GPT(8, 8, 8, 2, 2, key=jax.random.key(0))
    return loss_fn(model, jnp.zeros((2, 8), int), jax.random.key(1))
