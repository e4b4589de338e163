"""A GPT over characters, its blocks stacked and scanned, generating with a key-value cache."""

import jax
import jax.numpy as jnp
import optax
import weft
from gallery_data import text, windows

VOCAB, LENGTH, DIM, HEADS, LAYERS = 128, 64, 64, 4, 3
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-3))


def block(key):
    return weft.TransformerBlock(DIM, HEADS, causal=True, key=key)


class GPT(weft.Module):
    embed: weft.Embed
    position: weft.LearnedPositions
    blocks: weft.Stack
    norm: weft.LayerNorm
    head: weft.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.embed = weft.Embed(VOCAB, DIM, key=keys[0])
        self.position = weft.LearnedPositions(LENGTH, DIM, key=keys[1])
        self.blocks = weft.Stack(block, LAYERS, key=keys[2], remat=True)
        self.norm = weft.LayerNorm(DIM)
        self.head = weft.Linear(DIM, VOCAB, use_bias=False, key=keys[3])

    def __call__(self, ids, index=0):
        with weft.thread(self) as t:
            return t.done(t.head(t.norm(t.blocks(t.position(t.embed(ids), offset=index)))))


def make(key):
    return GPT(key)


def loss(model, ids):
    logits, _ = model(ids[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()


step = weft.jit(weft.Optimizer.minimize)


@weft.jit
def generate(model, prompt, key):
    attentions = weft.at(model, weft.filters.InstanceOf(weft.MultiHeadAttention))
    model = attentions.apply(lambda attention: attention.with_cache(LENGTH))

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
