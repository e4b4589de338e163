"""A GPT over characters, its blocks stacked and scanned, generating with a key-value cache."""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax
import weft
from gallery_data import text, windows

VOCAB, LENGTH, DIM, HEADS, LAYERS = 128, 64, 64, 4, 3
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-3))


class Attention(weft.Module):
    qkv: weft.Linear
    out: weft.Linear
    cache: Annotated[Any, weft.Cache] = None  # keys, values, and how many positions they hold

    def __call__(self, x):
        q, k, v = jnp.split(self.qkv(x).reshape(*x.shape[:-1], 3 * HEADS, DIM // HEADS), 3, axis=-2)
        mask, new = jnp.tril(jnp.ones((x.shape[-2], x.shape[-2]), bool)), self
        if self.cache is not None:
            keys, values, index = self.cache
            k = jax.lax.dynamic_update_slice_in_dim(keys, k, index, axis=0)
            v = jax.lax.dynamic_update_slice_in_dim(values, v, index, axis=0)
            mask, new = jnp.arange(LENGTH)[None] <= index, self.replace(cache=(k, v, index + 1))
        return self.out(jax.nn.dot_product_attention(q, k, v, mask=mask[None]).reshape(x.shape)), new


def block(key):
    keys = jax.random.split(key, 3)
    attention = Attention(weft.Linear(DIM, 3 * DIM, use_bias=False, key=keys[0]), weft.Linear(DIM, DIM, key=keys[1]))
    mlp = weft.Sequential(weft.LayerNorm(DIM), weft.MLP(DIM, 4 * DIM, DIM, activation=weft.gelu, key=keys[2]))
    attending = weft.StatefulSequential(weft.LayerNorm(DIM), attention)
    return weft.StatefulSequential(weft.Residual(attending), weft.Residual(mlp))


class GPT(weft.Module):
    embed: weft.Embed
    position: jax.Array
    blocks: weft.Stack
    norm: weft.LayerNorm
    head: weft.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.embed = weft.Embed(VOCAB, DIM, key=keys[0])
        self.position = 0.02 * jax.random.normal(keys[1], (LENGTH, DIM))
        self.blocks = weft.Stack(block, LAYERS, key=keys[2], remat=True)
        self.norm = weft.LayerNorm(DIM)
        self.head = weft.Linear(DIM, VOCAB, use_bias=False, key=keys[3])

    def __call__(self, ids, index=0):
        with weft.thread(self) as t:
            x = t.embed(ids) + jax.lax.dynamic_slice_in_dim(t.position, index, ids.shape[-1])
            return t.done(t.head(t.norm(t.blocks(x))))


def make(key):
    return GPT(key)


def loss(model, ids):
    logits, _ = model(ids[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()


step = weft.jit(weft.Optimizer.minimize)


@weft.jit
def generate(model, prompt, key):
    empty = jnp.zeros((LAYERS, LENGTH, HEADS, DIM // HEADS))
    model = weft.at(model, weft.InstanceOf(Attention)).replace(cache=(empty, empty, jnp.zeros(LAYERS, jnp.int32)))

    def next_character(carry, i):
        model, last, key = carry
        logits, model = model(last[None], i)
        key, draw = jax.random.split(key)
        last = jnp.where(i + 1 < len(prompt), prompt[i + 1], jax.random.categorical(draw, logits[0]))
        return (model, last, key), last

    return weft.scan(next_character)((model, prompt[0], key), jnp.arange(LENGTH - 1))[1]


def train(model, steps=200):
    opt, losses = weft.Optimizer(model, optimizer), []
    for ids in windows(LENGTH, 16, steps):
        value, model, opt = step(opt, loss, model, ids)
        losses.append(float(value))
    characters = generate(model, text()[:16], jax.random.key(1))
    print(f"loss {losses[-1]:.3f}, says {''.join(map(chr, characters))!r}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
