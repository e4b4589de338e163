"""A generative adversarial network of digits: two models, two optimizers."""

import jax
import jax.numpy as jnp
import optax
import weft
from gallery_data import batches, digits

LATENT = 16


def make(key):
    key1, key2 = jax.random.split(key)
    return weft.MLP(LATENT, 128, 128, 64, key=key1), weft.MLP(64, 128, 128, 1, activation=weft.leaky_relu, key=key2)


def generate(generator, key, count):
    return weft.sigmoid(generator(jax.random.normal(key, (count, LATENT))))


def critic_loss(critic, generator, real, key):
    fake = generate(generator, key, len(real))
    return jnp.mean(weft.softplus(-critic(real)) + weft.softplus(critic(fake)))


def generator_loss(generator, critic, key, count):
    return jnp.mean(weft.softplus(-critic(generate(generator, key, count))))


@weft.jit
def step(generator, critic, generator_opt, critic_opt, images, key):
    key1, key2 = jax.random.split(key)
    real = images.reshape(-1, 64)
    loss1, critic, critic_opt = critic_opt.minimize(critic_loss, critic, generator, real, key1)
    loss2, generator, generator_opt = generator_opt.minimize(generator_loss, generator, critic, key2, len(real))
    return generator, critic, generator_opt, critic_opt, loss1 + loss2


def train(models, steps=300):
    transformations = optax.adam(1e-3, b1=0.5), optax.adam(5e-4, b1=0.5)
    state, losses = (*models, *map(weft.Optimizer, models, transformations)), []
    for i, (images, _) in enumerate(batches(digits(), 64, steps)):
        *state, value = step(*state, images, jax.random.key(i))
        losses.append(float(value))
    print(f"losses {losses[-1]:.3f}, ink of the samples {generate(state[0], jax.random.key(0), 64).mean():.3f}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
