"""A variational autoencoder of digits, in equinox."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from gallery_data import batches, digits

LATENT = 8
optimizer = optax.adam(2e-3)


class VAE(eqx.Module):
    encoder: eqx.nn.MLP
    decoder: eqx.nn.MLP

    def __init__(self, key):
        key1, key2 = jax.random.split(key)
        self.encoder = eqx.nn.MLP(64, 2 * LATENT, 128, depth=1, key=key1)
        self.decoder = eqx.nn.MLP(LATENT, 64, 128, depth=1, key=key2)

    def __call__(self, x, key):
        mean, log_variance = jnp.split(self.encoder(x), 2)
        code = mean + jnp.exp(0.5 * log_variance) * jax.random.normal(key, mean.shape)
        return self.decoder(code), mean, log_variance


def make(key):
    return VAE(key)


def loss(model, images, key):
    x = images.reshape(-1, 64)
    logits, mean, log_variance = jax.vmap(model)(x, jax.random.split(key, len(x)))
    reconstruction = optax.sigmoid_binary_cross_entropy(logits, x).sum(-1)
    divergence = 0.5 * (jnp.exp(log_variance) + mean**2 - 1 - log_variance).sum(-1)
    return (reconstruction + divergence).mean()


@eqx.filter_jit
def step(model, state, images, key):
    value, gradient = eqx.filter_value_and_grad(loss)(model, images, key)
    updates, state = optimizer.update(gradient, state)
    return eqx.apply_updates(model, updates), state, value


@eqx.filter_jit
def sample(model, key):
    return jax.nn.sigmoid(jax.vmap(model.decoder)(jax.random.normal(key, (16, LATENT)))).reshape(-1, 8, 8)


def train(model, steps=400):
    state, losses = optimizer.init(eqx.filter(model, eqx.is_inexact_array)), []
    for i, (images, _) in enumerate(batches(digits(), 64, steps)):
        model, state, value = step(model, state, images, jax.random.key(i))
        losses.append(float(value))
    print(f"loss {losses[-1]:.2f}, ink of the samples {sample(model, jax.random.key(0)).mean():.3f}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
