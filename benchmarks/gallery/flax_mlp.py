"""A classifier of digits: an MLP, in flax.nnx."""

import jax
import optax
from flax import nnx
from gallery_data import batches, digits


def make(key):
    rngs = nnx.Rngs(key)
    hidden = nnx.Linear(64, 128, rngs=rngs), nnx.relu, nnx.Linear(128, 128, rngs=rngs), nnx.relu
    return nnx.Sequential(*hidden, nnx.Linear(128, 10, rngs=rngs))


def loss_and_accuracy(model, images, labels):
    logits = model(images.reshape(-1, 64))
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, (logits.argmax(-1) == labels).mean()


@nnx.jit
def step(model, opt, images, labels):
    (loss, accuracy), gradient = nnx.value_and_grad(loss_and_accuracy, has_aux=True)(model, images, labels)
    opt.update(model, gradient)
    return loss, accuracy


def train(model, steps=300):
    opt, losses = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param), []
    for images, labels in batches(digits(), 64, steps):
        loss, accuracy = step(model, opt, images, labels)
        losses.append(float(loss))
    print(f"loss {losses[-1]:.3f}, accuracy {accuracy:.1%}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
