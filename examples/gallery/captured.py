"""What a ConvNet looks at: gradients at its activations while it trains, and where they lie in an image."""

import jax
import jax.numpy as jnp
import optax
import weft
from gallery_data import batches, digits


class ConvNet(weft.Module):
    conv1: weft.Conv2d
    conv2: weft.Conv2d
    hidden: weft.Linear
    head: weft.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.conv1 = weft.Conv2d(1, 16, 3, key=keys[0])
        self.conv2 = weft.Conv2d(16, 32, 3, key=keys[1])
        self.hidden = weft.Linear(32, 64, key=keys[2])
        self.head = weft.Linear(64, 10, key=keys[3])

    def __call__(self, image):
        x = seen("conv1", weft.relu(self.conv1(image[..., None])))
        x = seen("conv2", weft.relu(self.conv2(x)))
        return self.head(seen("hidden", weft.relu(self.hidden(x.mean((-3, -2))))))


def seen(name, x):
    return weft.perturb(name, weft.sow(name, x))


def make(key):
    return ConvNet(key)


def loss(model, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()


@weft.jit
def step(model, opt, images, labels):
    def perturbed_loss(model, zeros):
        return weft.capture(loss, perturb=zeros)(model, images, labels)[0]

    zeros = weft.perturbations(loss)(model, images, labels)
    value, (gradient, at_activations) = weft.value_and_grad(perturbed_loss, argnums=(0, 1))(model, zeros)
    return *opt.update(model, gradient), value, jax.tree.map(jnp.linalg.norm, at_activations)


@weft.jit
def attention(model, images, labels):
    """Grad-CAM: the channels of the last convolution, weighted by the mean gradient at each."""
    zeros = weft.perturbations(loss)(model, images, labels)
    gradient, sown = weft.grad(lambda p: weft.capture(loss, perturb=p)(model, images, labels), has_aux=True)(zeros)
    return weft.relu((-gradient["conv2"].mean((1, 2), keepdims=True) * sown["conv2"][0]).sum(-1))


def train(model, steps=200):
    opt, losses = weft.Optimizer(model, optax.adam(2e-3)), []
    for images, labels in batches(digits(), 64, steps):
        model, opt, value, norms = step(model, opt, images, labels)
        losses.append(float(value))
    looked_at = attention(model, *(array[:64] for array in digits()))
    print(f"loss {losses[-1]:.3f}, gradients {', '.join(f'{name} {norm:.4f}' for name, norm in norms.items())}")
    print(f"of what it looks at, {(looked_at * digits()[0][:64]).sum() / looked_at.sum():.1%} is ink")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
