"""A variational autoencoder of digits."""

import jax
import jax.numpy as jnp
import optax
import weft
from gallery_data import batches, digits

LATENT = 8


class VAE(weft.Module):
    encoder: weft.MLP
    decoder: weft.MLP

    def __init__(self, key):
        key1, key2 = jax.random.split(key)
        self.encoder = weft.MLP(64, 128, 2 * LATENT, key=key1)
        self.decoder = weft.MLP(LATENT, 128, 64, key=key2)

    def __call__(self, x, key):
        mean, log_variance = jnp.split(self.encoder(x), 2)
        code = mean + jnp.exp(0.5 * log_variance) * jax.random.normal(key, mean.shape)
        return self.decoder(code), mean, log_variance


def make(key):
    return VAE(key)


def loss(model, images, key):
    x = images.reshape(-1, 64)
    logits, mean, log_variance = weft.vmap(model)(x, jax.random.split(key, len(x)))
    reconstruction = optax.sigmoid_binary_cross_entropy(logits, x).sum(-1)
    divergence = 0.5 * (jnp.exp(log_variance) + mean**2 - 1 - log_variance).sum(-1)
    return (reconstruction + divergence).mean()


step = weft.jit(weft.Optimizer.minimize)


@weft.jit
def sample(model, key):
    return weft.sigmoid(model.decoder(jax.random.normal(key, (16, LATENT)))).reshape(-1, 8, 8)


def train(model, steps=400):
    opt, losses = weft.Optimizer(model, optax.adam(2e-3)), []
    for i, (images, _) in enumerate(batches(digits(), 64, steps)):
        value, model, opt = step(opt, loss, model, images, jax.random.key(i))
        losses.append(float(value))
    print(f"loss {losses[-1]:.2f}, ink of the samples {sample(model, jax.random.key(0)).mean():.3f}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
