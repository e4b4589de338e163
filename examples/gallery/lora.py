"""A classifier fine-tuned on turned digits by low-rank adapters, its base frozen."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import weft
from gallery_data import batches, digits

RANK = 4


def make(key):
    return weft.MLP(64, 128, 128, 10, key=key)


def adapted(model, key):
    return weft.lora(model, RANK, key=key)


def loss(model, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(model(images.reshape(-1, 64)), labels).mean()


step = weft.jit(weft.Optimizer.minimize)


@weft.jit
def accuracy(model, images, labels):
    return jnp.mean(model(images.reshape(-1, 64)).argmax(-1) == labels)


def fit(model, wrt, data, steps):
    opt, losses = weft.Optimizer(model, optax.adam(3e-3), wrt=wrt), []
    for images, labels in batches(data, 64, steps):
        value, model, opt = step(opt, loss, model, images, labels)
        losses.append(float(value))
    return model, losses


def train(model, steps=200):
    images, labels = digits()
    turned = np.rot90(images, axes=(1, 2)), labels
    model, losses = fit(model, weft.Param, (images, labels), steps)
    before = accuracy(model, *turned)
    model, more = fit(adapted(model, jax.random.key(1)), weft.LoRAParam, turned, steps)
    model = weft.at(model, weft.filters.InstanceOf(weft.LoRA)).apply(weft.LoRA.merged)
    print(f"loss {more[-1]:.3f}, accuracy on turned digits {before:.1%} -> {accuracy(model, *turned):.1%}")
    return losses + more


if __name__ == "__main__":
    train(make(jax.random.key(0)))
