"""An ensemble of classifiers trained at once, and what its members disagree about, in equinox."""

import equinox as eqx
import jax
import optax
from gallery_data import batches, digits

MEMBERS = 5
optimizer = optax.adam(3e-3)


def make(key):
    return eqx.filter_vmap(lambda key: eqx.nn.MLP(64, 10, 64, depth=1, key=key))(jax.random.split(key, MEMBERS))


@eqx.filter_vmap(in_axes=(eqx.if_array(0), None))
def logits_of(member, images):
    return jax.vmap(member)(images.reshape(-1, 64))


def loss(ensemble, images, labels):
    losses = jax.vmap(optax.softmax_cross_entropy_with_integer_labels, in_axes=(0, None))(
        logits_of(ensemble, images), labels
    )
    return losses.mean(1).sum()


@eqx.filter_jit
def step(ensemble, state, images, labels):
    value, gradient = eqx.filter_value_and_grad(loss)(ensemble, images, labels)
    updates, state = optimizer.update(gradient, state)
    return eqx.apply_updates(ensemble, updates), state, value


@eqx.filter_jit
def evaluate(ensemble, images, labels):
    probabilities = jax.nn.softmax(logits_of(ensemble, images))
    return (probabilities.mean(0).argmax(-1) == labels).mean(), probabilities.std(0).mean()


def train(ensemble, steps=200):
    state, losses = optimizer.init(eqx.filter(ensemble, eqx.is_inexact_array)), []
    for images, labels in batches(digits(), 64, steps):
        ensemble, state, value = step(ensemble, state, images, labels)
        losses.append(float(value))
    accuracy, disagreement = evaluate(ensemble, *digits())
    print(f"loss {losses[-1]:.3f}, accuracy {accuracy:.1%}, disagreement {disagreement:.4f}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
