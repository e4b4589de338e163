"""Sequences reversed: a GRU encoder, a decoder with attention and teacher forcing."""

import jax
import jax.numpy as jnp
import optax
import weft
from gallery_data import reversals

VOCAB, LENGTH, DIM = 12, 8, 64


class Seq2Seq(weft.Module):
    embed: weft.Embed
    encoder: weft.RNN
    decoder: weft.GRUCell
    head: weft.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.embed = weft.Embed(VOCAB, DIM, key=keys[0])
        self.encoder = weft.RNN(weft.GRUCell(DIM, DIM, use_bias=False, key=keys[1]))
        self.decoder = weft.GRUCell(2 * DIM, DIM, use_bias=False, key=keys[2])
        self.head = weft.Linear(2 * DIM, VOCAB, key=keys[3])

    def decode(self, hidden, states, last):
        attended = weft.softmax(states @ hidden / jnp.sqrt(DIM)) @ states
        hidden, _ = self.decoder(hidden, jnp.concatenate([self.embed(last), attended]))
        return hidden, self.head(jnp.concatenate([hidden, attended]))

    def __call__(self, source, target):
        hidden, states = self.encoder(self.embed(source), return_carry=True)
        shifted = jnp.concatenate([jnp.zeros(1, target.dtype), target[:-1]])
        return weft.scan(lambda hidden, last: self.decode(hidden, states, last))(hidden, shifted)[1]

    def translate(self, source):
        hidden, states = self.encoder(self.embed(source), return_carry=True)

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
