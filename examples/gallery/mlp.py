"""A classifier of digits: an MLP."""

import jax
import optax
import weft
from gallery_data import batches, digits


def make(key):
    return weft.MLP(64, 128, 128, 10, key=key)


def loss_and_accuracy(model, images, labels):
    logits = model(images.reshape(-1, 64))
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, (logits.argmax(-1) == labels).mean()


step = weft.jit(weft.Optimizer.minimize)


def train(model, steps=300):
    opt, losses = weft.Optimizer(model, optax.adam(3e-3)), []
    for images, labels in batches(digits(), 64, steps):
        (loss, accuracy), model, opt = step(opt, loss_and_accuracy, model, images, labels)
        losses.append(float(loss))
    print(f"loss {losses[-1]:.3f}, accuracy {accuracy:.1%}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
