"""What a ConvNet looks at: gradients at its activations while it trains, and where they lie in an image, in equinox."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from gallery_data import batches, digits

optimizer = optax.adam(2e-3)


class ConvNet(eqx.Module):
    conv1: eqx.nn.Conv2d
    conv2: eqx.nn.Conv2d
    hidden: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.conv1 = eqx.nn.Conv2d(1, 16, 3, padding=1, key=keys[0])
        self.conv2 = eqx.nn.Conv2d(16, 32, 3, padding=1, key=keys[1])
        self.hidden = eqx.nn.Linear(32, 64, key=keys[2])
        self.head = eqx.nn.Linear(64, 10, key=keys[3])

    def __call__(self, image, zeros=None):
        zeros = {"conv1": 0.0, "conv2": 0.0, "hidden": 0.0} if zeros is None else zeros
        sown = {}
        sown["conv1"] = x = jax.nn.relu(self.conv1(image[None])) + zeros["conv1"]
        sown["conv2"] = x = jax.nn.relu(self.conv2(x)) + zeros["conv2"]
        sown["hidden"] = x = jax.nn.relu(self.hidden(x.mean((1, 2)))) + zeros["hidden"]
        return self.head(x), sown


def make(key):
    return ConvNet(key)


def loss_and_sown(model, zeros, images, labels):
    logits, sown = jax.vmap(model)(images, zeros)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), sown


def zeros_for(model, images):
    _, sown = eqx.filter_eval_shape(jax.vmap(model), images)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sown)


@eqx.filter_jit
def step(model, state, images, labels):
    def loss(model_and_zeros):
        return loss_and_sown(*model_and_zeros, images, labels)

    value_and_grad = eqx.filter_value_and_grad(loss, has_aux=True)
    (value, _), (gradient, at_activations) = value_and_grad((model, zeros_for(model, images)))
    updates, state = optimizer.update(gradient, state)
    norms = jax.tree.map(jnp.linalg.norm, at_activations)
    return eqx.apply_updates(model, updates), state, value, norms


@eqx.filter_jit
def attention(model, images, labels):
    """Grad-CAM: the channels of the last convolution, weighted by the mean gradient at each."""
    gradient, sown = jax.grad(loss_and_sown, argnums=1, has_aux=True)(model, zeros_for(model, images), images, labels)
    weights = -gradient["conv2"].mean((2, 3), keepdims=True)
    return jax.nn.relu((weights * sown["conv2"]).sum(1))


def train(model, steps=200):
    state, losses = optimizer.init(eqx.filter(model, eqx.is_inexact_array)), []
    for images, labels in batches(digits(), 64, steps):
        model, state, value, norms = step(model, state, images, labels)
        losses.append(float(value))
    seen = attention(model, *(array[:64] for array in digits()))
    print(f"loss {losses[-1]:.3f}, gradients {', '.join(f'{name} {norm:.4f}' for name, norm in norms.items())}")
    print(f"of what it looks at, {(seen * digits()[0][:64]).sum() / seen.sum():.1%} is ink")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
