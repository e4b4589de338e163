"""Sequences reversed: a gated recurrent encoder, a decoder with attention and teacher forcing."""

import jax
import jax.numpy as jnp
import optax
import weft
from gallery_data import reversals

VOCAB, LENGTH, DIM = 12, 8, 64


class Cell(weft.Module):
    gate: weft.Linear
    candidate: weft.Linear

    def __init__(self, in_features, key):
        key1, key2 = jax.random.split(key)
        self.gate = weft.Linear(in_features + DIM, DIM, key=key1)
        self.candidate = weft.Linear(in_features + DIM, DIM, key=key2)

    def __call__(self, hidden, x):
        gate = weft.sigmoid(self.gate(jnp.concatenate([x, hidden])))
        candidate = weft.tanh(self.candidate(jnp.concatenate([x, gate * hidden])))
        return hidden + gate * (candidate - hidden)


class Seq2Seq(weft.Module):
    embed: weft.Embed
    encoder: Cell
    decoder: Cell
    head: weft.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.embed = weft.Embed(VOCAB, DIM, key=keys[0])
        self.encoder = Cell(DIM, keys[1])
        self.decoder = Cell(2 * DIM, keys[2])
        self.head = weft.Linear(2 * DIM, VOCAB, key=keys[3])

    def encode(self, source):
        return weft.scan(lambda hidden, x: (self.encoder(hidden, x),) * 2)(jnp.zeros(DIM), self.embed(source))

    def decode(self, hidden, states, last):
        attended = weft.softmax(states @ hidden / jnp.sqrt(DIM)) @ states
        hidden = self.decoder(hidden, jnp.concatenate([self.embed(last), attended]))
        return hidden, self.head(jnp.concatenate([hidden, attended]))

    def __call__(self, source, target):
        hidden, states = self.encode(source)
        shifted = jnp.concatenate([jnp.zeros(1, target.dtype), target[:-1]])
        return weft.scan(lambda hidden, last: self.decode(hidden, states, last))(hidden, shifted)[1]

    def translate(self, source):
        hidden, states = self.encode(source)

        def step(carry, _):
            hidden, logits = self.decode(carry[0], states, carry[1])
            return (hidden, logits.argmax().astype(source.dtype)), logits.argmax()

        return weft.scan(step)((hidden, jnp.zeros((), source.dtype)), source)[1]


def make(key):
    return Seq2Seq(key)


def loss(model, source, target):
    return optax.softmax_cross_entropy_with_integer_labels(weft.vmap(model)(source, target), target).mean()


step = weft.jit(weft.Optimizer.minimize)


@weft.jit
def translate(model, source):
    return weft.vmap(model.translate)(source)


def train(model, steps=400):
    opt, losses = weft.Optimizer(model, optax.adam(3e-3)), []
    for source, target in reversals(LENGTH, VOCAB, 64, steps):
        value, model, opt = step(opt, loss, model, source, target)
        losses.append(float(value))
    print(f"loss {losses[-1]:.3f}, right {jnp.mean(translate(model, source) == target):.1%}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
