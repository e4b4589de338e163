"""A classifier of digits: a ResNet with BatchNorm, in equinox."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from gallery_data import batches, digits

optimizer = optax.adamw(3e-3, weight_decay=1e-3)


class Residual(eqx.nn.StatefulLayer):
    layers: eqx.nn.Sequential

    def __call__(self, x, state, *, key=None):
        y, state = self.layers(x, state)
        return x + y, state


def block(features, key):
    conv = partial(eqx.nn.Conv2d, features, features, 3, padding="SAME", use_bias=False)
    norm = partial(eqx.nn.BatchNorm, features, "batch", momentum=0.9, mode="batch")
    key1, key2 = jax.random.split(key)
    layers = [conv(key=key1), norm(), eqx.nn.Lambda(jax.nn.relu), conv(key=key2), norm()]
    return eqx.nn.Sequential([Residual(eqx.nn.Sequential(layers)), eqx.nn.Lambda(jax.nn.relu)])


def make_model(key):
    keys, relu = jax.random.split(key, 5), eqx.nn.Lambda(jax.nn.relu)
    layers = [eqx.nn.Conv2d(1, 16, 3, padding="SAME", key=keys[0]), relu, block(16, keys[1])]
    layers += [eqx.nn.Conv2d(16, 32, 3, stride=2, padding="SAME", key=keys[2]), relu, block(32, keys[3])]
    layers += [eqx.nn.Lambda(partial(jnp.mean, axis=(1, 2))), eqx.nn.Linear(32, 10, key=keys[4])]
    return eqx.nn.Sequential(layers)


def make(key):
    return eqx.nn.make_with_state(make_model)(key)


def loss_and_state(model, state, images, labels):
    batched = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    logits, state = batched(images[:, None], state)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), state


@eqx.filter_jit
def step(model, state, opt_state, images, labels):
    (loss, state), gradient = eqx.filter_value_and_grad(loss_and_state, has_aux=True)(model, state, images, labels)
    updates, opt_state = optimizer.update(gradient, opt_state, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), state, opt_state, loss


@eqx.filter_jit
def accuracy(model, state, images, labels):
    batched = jax.vmap(eqx.nn.inference_mode(model), axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    logits, _ = batched(images[:, None], state)
    return jnp.mean(logits.argmax(-1) == labels)


def train(model_and_state, steps=150):
    model, state = model_and_state
    opt_state, losses = optimizer.init(eqx.filter(model, eqx.is_inexact_array)), []
    for images, labels in batches(digits(), 64, steps):
        model, state, opt_state, loss = step(model, state, opt_state, images, labels)
        losses.append(float(loss))
    print(f"loss {losses[-1]:.3f}, accuracy {accuracy(model, state, *digits()):.1%}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
