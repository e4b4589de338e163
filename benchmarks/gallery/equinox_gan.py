"""A generative adversarial network of digits: two models, two optimizers, in equinox."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from gallery_data import batches, digits

LATENT = 16
generator_optimizer = optax.adam(1e-3, b1=0.5)
critic_optimizer = optax.adam(5e-4, b1=0.5)


def make(key):
    key1, key2 = jax.random.split(key)
    generator = eqx.nn.MLP(LATENT, 64, 128, depth=2, final_activation=jax.nn.sigmoid, key=key1)
    return generator, eqx.nn.MLP(64, 1, 128, depth=2, activation=jax.nn.leaky_relu, key=key2)


def generate(generator, key, count):
    return jax.vmap(generator)(jax.random.normal(key, (count, LATENT)))


def critic_loss(critic, generator, real, key):
    fake = generate(generator, key, len(real))
    return jnp.mean(jax.nn.softplus(-jax.vmap(critic)(real)) + jax.nn.softplus(jax.vmap(critic)(fake)))


def generator_loss(generator, critic, key, count):
    return jnp.mean(jax.nn.softplus(-jax.vmap(critic)(generate(generator, key, count))))


@eqx.filter_jit
def step(generator, critic, generator_state, critic_state, images, key):
    key1, key2 = jax.random.split(key)
    real = images.reshape(-1, 64)
    loss1, gradient = eqx.filter_value_and_grad(critic_loss)(critic, generator, real, key1)
    updates, critic_state = critic_optimizer.update(gradient, critic_state)
    critic = eqx.apply_updates(critic, updates)
    loss2, gradient = eqx.filter_value_and_grad(generator_loss)(generator, critic, key2, len(real))
    updates, generator_state = generator_optimizer.update(gradient, generator_state)
    generator = eqx.apply_updates(generator, updates)
    return generator, critic, generator_state, critic_state, loss1 + loss2


def train(models, steps=300):
    generator, critic = (eqx.filter(model, eqx.is_inexact_array) for model in models)
    state, losses = (*models, generator_optimizer.init(generator), critic_optimizer.init(critic)), []
    for i, (images, _) in enumerate(batches(digits(), 64, steps)):
        *state, value = step(*state, images, jax.random.key(i))
        losses.append(float(value))
    print(f"losses {losses[-1]:.3f}, ink of the samples {generate(state[0], jax.random.key(0), 64).mean():.3f}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
