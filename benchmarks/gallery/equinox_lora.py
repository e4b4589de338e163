"""A classifier fine-tuned on turned digits by low-rank adapters, its base frozen, in equinox."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from gallery_data import batches, digits

RANK = 4
optimizer = optax.adam(3e-3)


class LoRA(eqx.Module):
    base: eqx.nn.Linear
    down: jax.Array
    up: jax.Array

    def __init__(self, base, key):
        self.base = base
        self.down = jax.nn.initializers.he_uniform()(key, (base.in_features, RANK))
        self.up = jnp.zeros((RANK, base.out_features))

    def __call__(self, x):
        return self.base(x) + x @ self.down @ self.up

    def merged(self):
        return eqx.tree_at(lambda linear: linear.weight, self.base, self.base.weight + (self.down @ self.up).T)


def instances(model, cls):
    leaves = jax.tree.leaves(model, is_leaf=lambda node: isinstance(node, cls))
    return [leaf for leaf in leaves if isinstance(leaf, cls)]


def make(key):
    return eqx.nn.MLP(64, 10, 128, depth=2, key=key)


def adapted(model, key):
    linears = instances(model, eqx.nn.Linear)
    adapters = [LoRA(linear, k) for linear, k in zip(linears, jax.random.split(key, len(linears)), strict=True)]
    return eqx.tree_at(lambda model: instances(model, eqx.nn.Linear), model, adapters)


def merged(model):
    return eqx.tree_at(lambda model: instances(model, LoRA), model, [lora.merged() for lora in instances(model, LoRA)])


def adapter_arrays(model):
    return [array for lora in instances(model, LoRA) for array in (lora.down, lora.up)]


def adapters_of(model):
    return eqx.tree_at(adapter_arrays, jax.tree.map(lambda _: False, model), replace_fn=lambda _: True)


def loss(trained, frozen, images, labels):
    model = eqx.combine(trained, frozen)
    logits = jax.vmap(model)(images.reshape(-1, 64))
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@eqx.filter_jit
def step(model, spec, state, images, labels):
    trained, frozen = eqx.partition(model, spec)
    value, gradient = eqx.filter_value_and_grad(loss)(trained, frozen, images, labels)
    updates, state = optimizer.update(gradient, state)
    return eqx.apply_updates(model, updates), state, value


@eqx.filter_jit
def accuracy(model, images, labels):
    return jnp.mean(jax.vmap(model)(images.reshape(-1, 64)).argmax(-1) == labels)


def fit(model, spec, data, steps):
    state, losses = optimizer.init(eqx.filter(model, spec)), []
    for images, labels in batches(data, 64, steps):
        model, state, value = step(model, spec, state, images, labels)
        losses.append(float(value))
    return model, losses


def train(model, steps=200):
    images, labels = digits()
    turned = np.rot90(images, axes=(1, 2)), labels
    model, losses = fit(model, jax.tree.map(eqx.is_inexact_array, model), (images, labels), steps)
    before = accuracy(model, *turned)
    model = adapted(model, jax.random.key(1))
    model, more = fit(model, adapters_of(model), turned, steps)
    print(f"loss {more[-1]:.3f}, accuracy on turned digits {before:.1%} -> {accuracy(merged(model), *turned):.1%}")
    return losses + more


if __name__ == "__main__":
    train(make(jax.random.key(0)))
