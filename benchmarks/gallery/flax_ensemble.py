"""An ensemble of classifiers trained at once, and what its members disagree about, in flax.nnx."""

import jax
import optax
from flax import nnx
from gallery_data import batches, digits

MEMBERS = 5


@nnx.split_rngs(splits=MEMBERS)
@nnx.vmap
def members(rngs):
    return nnx.Sequential(nnx.Linear(64, 64, rngs=rngs), nnx.relu, nnx.Linear(64, 10, rngs=rngs))


def make(key):
    return members(nnx.Rngs(key))


@nnx.vmap(in_axes=(0, None))
def logits_of(member, images):
    return member(images.reshape(-1, 64))


def loss(ensemble, images, labels):
    logits = logits_of(ensemble, images)
    losses = jax.vmap(optax.softmax_cross_entropy_with_integer_labels, in_axes=(0, None))(logits, labels)
    return losses.mean(1).sum()


@nnx.jit
def step(ensemble, opt, images, labels):
    value, gradient = nnx.value_and_grad(loss)(ensemble, images, labels)
    opt.update(ensemble, gradient)
    return value


@nnx.jit
def evaluate(ensemble, images, labels):
    probabilities = nnx.softmax(logits_of(ensemble, images))
    return (probabilities.mean(0).argmax(-1) == labels).mean(), probabilities.std(0).mean()


def train(ensemble, steps=200):
    opt, losses = nnx.Optimizer(ensemble, optax.adam(3e-3), wrt=nnx.Param), []
    for images, labels in batches(digits(), 64, steps):
        losses.append(float(step(ensemble, opt, images, labels)))
    accuracy, disagreement = evaluate(ensemble, *digits())
    print(f"loss {losses[-1]:.3f}, accuracy {accuracy:.1%}, disagreement {disagreement:.4f}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
