"""Sequences reversed: a GRU encoder, a decoder with attention and teacher forcing, in equinox."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from gallery_data import reversals

VOCAB, LENGTH, DIM = 12, 8, 64
optimizer = optax.adam(3e-3)


class Seq2Seq(eqx.Module):
    embed: eqx.nn.Embedding
    encoder: eqx.nn.GRUCell
    decoder: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.embed = eqx.nn.Embedding(VOCAB, DIM, key=keys[0])
        self.encoder = eqx.nn.GRUCell(DIM, DIM, use_bias=False, key=keys[1])
        self.decoder = eqx.nn.GRUCell(2 * DIM, DIM, use_bias=False, key=keys[2])
        self.head = eqx.nn.Linear(2 * DIM, VOCAB, key=keys[3])

    def encode(self, source):
        def step(hidden, x):
            hidden = self.encoder(x, hidden)
            return hidden, hidden

        return jax.lax.scan(step, jnp.zeros(DIM), jax.vmap(self.embed)(source))

    def decode(self, hidden, states, last):
        attended = jax.nn.softmax(states @ hidden / jnp.sqrt(DIM)) @ states
        hidden = self.decoder(jnp.concatenate([self.embed(last), attended]), hidden)
        return hidden, self.head(jnp.concatenate([hidden, attended]))

    def __call__(self, source, target):
        hidden, states = self.encode(source)
        shifted = jnp.concatenate([jnp.zeros(1, target.dtype), target[:-1]])
        return jax.lax.scan(lambda hidden, last: self.decode(hidden, states, last), hidden, shifted)[1]

    def translate(self, source):
        hidden, states = self.encode(source)

        def step(carry, _):
            hidden, logits = self.decode(carry[0], states, carry[1])
            return (hidden, logits.argmax().astype(source.dtype)), logits.argmax()

        return jax.lax.scan(step, (hidden, jnp.zeros((), source.dtype)), length=len(source))[1]


def make(key):
    return Seq2Seq(key)


def loss(model, source, target):
    return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(source, target), target).mean()


@eqx.filter_jit
def step(model, state, source, target):
    value, gradient = eqx.filter_value_and_grad(loss)(model, source, target)
    updates, state = optimizer.update(gradient, state)
    return eqx.apply_updates(model, updates), state, value


@eqx.filter_jit
def translate(model, source):
    return jax.vmap(model.translate)(source)


def train(model, steps=400):
    state, losses = optimizer.init(eqx.filter(model, eqx.is_inexact_array)), []
    for source, target in reversals(LENGTH, VOCAB, 64, steps):
        model, state, value = step(model, state, source, target)
        losses.append(float(value))
    print(f"loss {losses[-1]:.3f}, right {jnp.mean(translate(model, source) == target):.1%}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
