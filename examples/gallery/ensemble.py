"""An ensemble of classifiers trained at once, and what its members disagree about."""

import jax
import optax
import weft
from gallery_data import batches, digits

MEMBERS = 5


def make(key):
    return weft.Ensemble(lambda key: weft.MLP(64, 64, 10, key=key), MEMBERS, key=key)


def loss(ensemble, images, labels):
    logits = ensemble(images.reshape(-1, 64))
    losses = weft.vmap(optax.softmax_cross_entropy_with_integer_labels, in_axes=(0, None))(logits, labels)
    return losses.mean(1).sum()


step = weft.jit(weft.Optimizer.minimize)


@weft.jit
def evaluate(ensemble, images, labels):
    probabilities = weft.softmax(ensemble(images.reshape(-1, 64)))
    return (probabilities.mean(0).argmax(-1) == labels).mean(), probabilities.std(0).mean()


def train(ensemble, steps=200):
    opt, losses = weft.Optimizer(ensemble, optax.adam(3e-3)), []
    for images, labels in batches(digits(), 64, steps):
        value, ensemble, opt = step(opt, loss, ensemble, images, labels)
        losses.append(float(value))
    accuracy, disagreement = evaluate(ensemble, *digits())
    print(f"loss {losses[-1]:.3f}, accuracy {accuracy:.1%}, disagreement {disagreement:.4f}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
