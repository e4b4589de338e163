"""A classifier of digits: a ResNet with BatchNorm."""

from functools import partial

import jax
import jax.numpy as jnp
import optax
import weft
from gallery_data import batches, digits


def block(features, key):
    conv = partial(weft.Conv2d, features, features, 3, use_bias=False)
    norm = partial(weft.BatchNorm, features, momentum=0.9)
    key1, key2 = jax.random.split(key)
    layers = weft.StatefulSequential(conv(key=key1), norm(), weft.relu, conv(key=key2), norm())
    return weft.StatefulSequential(weft.Residual(layers), weft.relu)


def make(key):
    keys = jax.random.split(key, 5)
    return weft.StatefulSequential(
        *(weft.Conv2d(1, 16, 3, key=keys[0]), weft.relu, block(16, keys[1])),
        *(weft.Conv2d(16, 32, 3, strides=2, key=keys[2]), weft.relu, block(32, keys[3])),
        *(partial(jnp.mean, axis=(-3, -2)), weft.Linear(32, 10, key=keys[4])),
    )


def loss_and_model(model, images, labels):
    logits, model = model(images[..., None])
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), model


step = weft.jit(weft.Optimizer.minimize)


@weft.jit
def accuracy(model, images, labels):
    logits, _ = weft.inference_mode(model)(images[..., None])
    return jnp.mean(logits.argmax(-1) == labels)


def train(model, steps=150):
    opt, losses = weft.Optimizer(model, optax.adamw(3e-3, weight_decay=1e-3)), []
    for images, labels in batches(digits(), 64, steps):
        loss, model, opt = step(opt, loss_and_model, model, images, labels)
        losses.append(float(loss))
    print(f"loss {losses[-1]:.3f}, accuracy {accuracy(model, *digits()):.1%}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
