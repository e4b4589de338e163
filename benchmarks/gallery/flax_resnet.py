"""A classifier of digits: a ResNet with BatchNorm, in flax.nnx."""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from gallery_data import batches, digits


class Residual(nnx.Module):
    def __init__(self, *layers):
        self.layers = nnx.Sequential(*layers)

    def __call__(self, x):
        return x + self.layers(x)


def block(features, rngs):
    conv = partial(nnx.Conv, features, features, (3, 3), use_bias=False, rngs=rngs)
    norm = partial(nnx.BatchNorm, features, momentum=0.9, rngs=rngs)
    return nnx.Sequential(Residual(conv(), norm(), nnx.relu, conv(), norm()), nnx.relu)


def make(key):
    rngs = nnx.Rngs(key)
    return nnx.Sequential(
        *(nnx.Conv(1, 16, (3, 3), rngs=rngs), nnx.relu, block(16, rngs)),
        *(nnx.Conv(16, 32, (3, 3), strides=2, rngs=rngs), nnx.relu, block(32, rngs)),
        *(partial(jnp.mean, axis=(-3, -2)), nnx.Linear(32, 10, rngs=rngs)),
    )


def loss_of(model, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(model(images[..., None]), labels).mean()


@nnx.jit
def step(model, opt, images, labels):
    loss, gradient = nnx.value_and_grad(loss_of)(model, images, labels)
    opt.update(model, gradient)
    return loss


@nnx.jit
def accuracy(model, images, labels):
    return jnp.mean(model(images[..., None]).argmax(-1) == labels)


def train(model, steps=150):
    opt, losses = nnx.Optimizer(model, optax.adamw(3e-3, weight_decay=1e-3), wrt=nnx.Param), []
    for images, labels in batches(digits(), 64, steps):
        losses.append(float(step(model, opt, images, labels)))
    model.eval()
    print(f"loss {losses[-1]:.3f}, accuracy {accuracy(model, *digits()):.1%}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
