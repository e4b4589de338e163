"""A transformer block configured by a dataclass."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from weft import nnx


@dataclasses.dataclass(frozen=True)
class Config:
    d_model: int
    n_heads: int
    d_ff: int
    vocab: int
    n_layers: int = 2
    dropout: float = 0.1


class Attention(nnx.Module):
    def __init__(self, cfg: Config, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.q = nnx.Linear(cfg.d_model, cfg.d_model, use_bias=False, rngs=rngs)
        self.kv = nnx.Linear(cfg.d_model, 2 * cfg.d_model, use_bias=False, rngs=rngs)
        self.o = nnx.Linear(cfg.d_model, cfg.d_model, use_bias=False, rngs=rngs)

    def __call__(self, x: Float[Array, "b s d_model"], mask: Bool[Array, "s s"]) -> Float[Array, "b s d_model"]:
        b, s, d = x.shape
        h = self.cfg.n_heads
        q = self.q(x).reshape(b, s, h, d // h)
        k, v = (one.reshape(b, s, h, d // h) for one in jnp.split(self.kv(x), 2, axis=-1))
        logits = jnp.einsum("bqhc,bkhc->bhqk", q, k) / (d // h) ** 0.5
        logits = jnp.where(mask, logits, -1e30)
        y = jnp.einsum("bhqk,bkhc->bqhc", jax.nn.softmax(logits), v)
        return self.o(y.reshape(b, s, d))


class Block(nnx.Module):
    def __init__(self, cfg: Config, *, rngs: nnx.Rngs):
        self.attention = Attention(cfg, rngs=rngs)
        self.up = nnx.Linear(cfg.d_model, cfg.d_ff, rngs=rngs)
        self.down = nnx.Linear(cfg.d_ff, cfg.d_model, rngs=rngs)
        self.n1, self.n2 = nnx.RMSNorm(cfg.d_model, rngs=rngs), nnx.RMSNorm(cfg.d_model, rngs=rngs)
        self.drop = nnx.Dropout(cfg.dropout, rngs=rngs)

    def __call__(self, x: Float[Array, "b s d_model"], mask: Bool[Array, "s s"]) -> Float[Array, "b s d_model"]:
        x = x + self.drop(self.attention(self.n1(x), mask))
        return x + self.down(nnx.gelu(self.up(self.n2(x))))


class Lm(nnx.Module):
    def __init__(self, cfg: Config, *, rngs: nnx.Rngs):
        self.embed = nnx.Embed(cfg.vocab, cfg.d_model, rngs=rngs)
        self.blocks = nnx.List([Block(cfg, rngs=rngs) for _ in range(cfg.n_layers)])
        self.norm = nnx.RMSNorm(cfg.d_model, rngs=rngs)

    def __call__(self, tokens: Int[Array, "b s"]) -> Float[Array, "b s vocab"]:
        x = self.embed(tokens)
        mask = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))  # bug: mask = jnp.tril(jnp.ones((tokens.shape[0],) * 2, bool))
        for block in self.blocks:
            x = block(x, mask)
        return self.embed.attend(self.norm(x))


def loss_fn(model: Lm, tokens: Int[Array, "b s"]) -> Float[Array, ""]:
    logits = jax.nn.log_softmax(model(tokens)[:, :-1])
    return -jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1).mean()


entry = Lm


def sample():
    return Lm(Config(8, 2, 16, 11), rngs=nnx.Rngs(0))(jnp.zeros((4, 4), int))
