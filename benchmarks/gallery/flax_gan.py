"""A generative adversarial network of digits: two models, two optimizers, in flax.nnx."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from gallery_data import batches, digits

LATENT = 16


def mlp(sizes, activation, rngs):
    first, second, last = (nnx.Linear(n, m, rngs=rngs) for n, m in pairwise(sizes))
    return nnx.Sequential(first, activation, second, activation, last)


def make(key):
    rngs = nnx.Rngs(key)
    return mlp((LATENT, 128, 128, 64), nnx.relu, rngs), mlp((64, 128, 128, 1), nnx.leaky_relu, rngs)


def generate(generator, key, count):
    return nnx.sigmoid(generator(jax.random.normal(key, (count, LATENT))))


def critic_loss(critic, generator, real, key):
    fake = generate(generator, key, len(real))
    return jnp.mean(nnx.softplus(-critic(real)) + nnx.softplus(critic(fake)))


def generator_loss(generator, critic, key, count):
    return jnp.mean(nnx.softplus(-critic(generate(generator, key, count))))


@nnx.jit
def step(generator, critic, generator_opt, critic_opt, images, key):
    key1, key2 = jax.random.split(key)
    real = images.reshape(-1, 64)
    loss1, gradient = nnx.value_and_grad(critic_loss)(critic, generator, real, key1)
    critic_opt.update(critic, gradient)
    loss2, gradient = nnx.value_and_grad(lambda *args: generator_loss(*args, len(real)))(generator, critic, key2)
    generator_opt.update(generator, gradient)
    return loss1 + loss2


def train(models, steps=300):
    generator_opt = nnx.Optimizer(models[0], optax.adam(1e-3, b1=0.5), wrt=nnx.Param)
    critic_opt, losses = nnx.Optimizer(models[1], optax.adam(5e-4, b1=0.5), wrt=nnx.Param), []
    for i, (images, _) in enumerate(batches(digits(), 64, steps)):
        losses.append(float(step(*models, generator_opt, critic_opt, images, jax.random.key(i))))
    print(f"losses {losses[-1]:.3f}, ink of the samples {generate(models[0], jax.random.key(0), 64).mean():.3f}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
