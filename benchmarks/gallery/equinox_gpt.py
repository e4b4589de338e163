"""A GPT over characters, its blocks stacked and scanned, generating with a key-value cache, in equinox."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from gallery_data import text, windows

VOCAB, LENGTH, DIM, HEADS, LAYERS = 128, 64, 64, 4, 3
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-3))


class Attention(eqx.Module):
    qkv: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(self, key):
        key1, key2 = jax.random.split(key)
        self.qkv = eqx.nn.Linear(DIM, 3 * DIM, key=key1)
        self.out = eqx.nn.Linear(DIM, DIM, key=key2)

    def __call__(self, x, cache):
        q, k, v = jnp.split(jax.vmap(self.qkv)(x).reshape(-1, 3 * HEADS, DIM // HEADS), 3, axis=1)
        mask = jnp.tril(jnp.ones((len(x), len(x)), bool))
        if cache is not None:
            keys, values, index = cache
            k = jax.lax.dynamic_update_slice_in_dim(keys, k, index, axis=0)
            v = jax.lax.dynamic_update_slice_in_dim(values, v, index, axis=0)
            cache, mask = (k, v, index + len(x)), jnp.arange(LENGTH)[None] <= index
        return jax.vmap(self.out)(jax.nn.dot_product_attention(q, k, v, mask=mask[None]).reshape(-1, DIM)), cache


class Block(eqx.Module):
    norm1: eqx.nn.LayerNorm
    attention: Attention
    norm2: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __init__(self, key):
        key1, key2 = jax.random.split(key)
        self.norm1 = eqx.nn.LayerNorm(DIM)
        self.attention = Attention(key1)
        self.norm2 = eqx.nn.LayerNorm(DIM)
        self.mlp = eqx.nn.MLP(DIM, DIM, 4 * DIM, depth=1, activation=jax.nn.gelu, key=key2)

    def __call__(self, x, cache):
        y, cache = self.attention(jax.vmap(self.norm1)(x), cache)
        x = x + y
        return x + jax.vmap(self.mlp)(jax.vmap(self.norm2)(x)), cache


class GPT(eqx.Module):
    embed: eqx.nn.Embedding
    position: jax.Array
    blocks: Block
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.embed = eqx.nn.Embedding(VOCAB, DIM, key=keys[0])
        self.position = 0.02 * jax.random.normal(keys[1], (LENGTH, DIM))
        self.blocks = eqx.filter_vmap(Block)(jax.random.split(keys[2], LAYERS))
        self.norm = eqx.nn.LayerNorm(DIM)
        self.head = eqx.nn.Linear(DIM, VOCAB, use_bias=False, key=keys[3])

    def __call__(self, ids, caches=None):
        index = 0 if caches is None else caches[2][0]
        x = jax.vmap(self.embed)(ids) + jax.lax.dynamic_slice_in_dim(self.position, index, len(ids))
        arrays, static = eqx.partition(self.blocks, eqx.is_array)

        @jax.checkpoint
        def layer(x, arrays_and_cache):
            arrays, cache = arrays_and_cache
            return eqx.combine(arrays, static)(x, cache)

        x, caches = jax.lax.scan(layer, x, (arrays, caches))
        return jax.vmap(self.head)(jax.vmap(self.norm)(x)), caches


def make(key):
    return GPT(key)


def loss(model, ids):
    logits, _ = jax.vmap(model)(ids[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()


@eqx.filter_jit
def step(model, state, ids):
    value, gradient = eqx.filter_value_and_grad(loss)(model, ids)
    updates, state = optimizer.update(gradient, state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), state, value


@eqx.filter_jit
def generate(model, prompt, key):
    empty = jnp.zeros((LAYERS, LENGTH, HEADS, DIM // HEADS))
    caches = empty, empty, jnp.zeros(LAYERS, jnp.int32)

    def next_character(carry, i):
        caches, last, key = carry
        logits, caches = model(last[None], caches)
        key, draw = jax.random.split(key)
        last = jnp.where(i + 1 < len(prompt), prompt[i + 1], jax.random.categorical(draw, logits[0]))
        return (caches, last, key), last

    return jax.lax.scan(next_character, (caches, prompt[0], key), jnp.arange(LENGTH - 1))[1]


def train(model, steps=200):
    state, losses = optimizer.init(eqx.filter(model, eqx.is_inexact_array)), []
    for ids in windows(LENGTH, 16, steps):
        model, state, value = step(model, state, ids)
        losses.append(float(value))
    characters = generate(model, text()[:16], jax.random.key(1))
    print(f"loss {losses[-1]:.3f}, says {''.join(map(chr, characters))!r}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
