"""A classifier of digits: an MLP, in equinox."""

import equinox as eqx
import jax
import optax
from gallery_data import batches, digits

optimizer = optax.adam(3e-3)


def make(key):
    return eqx.nn.MLP(64, 10, 128, depth=2, key=key)


def loss_and_accuracy(model, images, labels):
    logits = jax.vmap(model)(images.reshape(-1, 64))
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, (logits.argmax(-1) == labels).mean()


@eqx.filter_jit
def step(model, state, images, labels):
    (loss, accuracy), gradient = eqx.filter_value_and_grad(loss_and_accuracy, has_aux=True)(model, images, labels)
    updates, state = optimizer.update(gradient, state)
    return eqx.apply_updates(model, updates), state, loss, accuracy


def train(model, steps=300):
    state, losses = optimizer.init(eqx.filter(model, eqx.is_inexact_array)), []
    for images, labels in batches(digits(), 64, steps):
        model, state, loss, accuracy = step(model, state, images, labels)
        losses.append(float(loss))
    print(f"loss {losses[-1]:.3f}, accuracy {accuracy:.1%}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
