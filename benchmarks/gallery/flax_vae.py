"""A variational autoencoder of digits, in flax.nnx."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from gallery_data import batches, digits

LATENT = 8


class VAE(nnx.Module):
    def __init__(self, rngs):
        self.encoder = nnx.Sequential(nnx.Linear(64, 128, rngs=rngs), nnx.relu, nnx.Linear(128, 2 * LATENT, rngs=rngs))
        self.decoder = nnx.Sequential(nnx.Linear(LATENT, 128, rngs=rngs), nnx.relu, nnx.Linear(128, 64, rngs=rngs))

    def __call__(self, x, key):
        mean, log_variance = jnp.split(self.encoder(x), 2)
        code = mean + jnp.exp(0.5 * log_variance) * jax.random.normal(key, mean.shape)
        return self.decoder(code), mean, log_variance


def make(key):
    return VAE(nnx.Rngs(key))


def loss(model, images, key):
    x = images.reshape(-1, 64)
    logits, mean, log_variance = nnx.vmap(VAE.__call__, in_axes=(None, 0, 0))(model, x, jax.random.split(key, len(x)))
    reconstruction = optax.sigmoid_binary_cross_entropy(logits, x).sum(-1)
    divergence = 0.5 * (jnp.exp(log_variance) + mean**2 - 1 - log_variance).sum(-1)
    return (reconstruction + divergence).mean()


@nnx.jit
def step(model, opt, images, key):
    value, gradient = nnx.value_and_grad(loss)(model, images, key)
    opt.update(model, gradient)
    return value


@nnx.jit
def sample(model, key):
    return nnx.sigmoid(model.decoder(jax.random.normal(key, (16, LATENT)))).reshape(-1, 8, 8)


def train(model, steps=400):
    opt, losses = nnx.Optimizer(model, optax.adam(2e-3), wrt=nnx.Param), []
    for i, (images, _) in enumerate(batches(digits(), 64, steps)):
        losses.append(float(step(model, opt, images, jax.random.key(i))))
    print(f"loss {losses[-1]:.2f}, ink of the samples {sample(model, jax.random.key(0)).mean():.3f}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
