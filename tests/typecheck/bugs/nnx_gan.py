"""A step of a generative adversarial pair: two models, two optimizers."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Generator(nnx.Module):
    def __init__(self, z: int, d: int, *, rngs: nnx.Rngs):
        self.linear = nnx.Linear(z, d, rngs=rngs)

    def __call__(self, noise: Float[Array, "b z"]) -> Float[Array, "b d"]:
        return jnp.tanh(self.linear(noise))


class Critic(nnx.Module):
    def __init__(self, d: int, *, rngs: nnx.Rngs):
        self.linear = nnx.Linear(d, 1, rngs=rngs)

    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b"]:
        return self.linear(x)[:, 0]  # bug: return self.linear(x)


def gan_step(
    generator: Generator,
    critic: Critic,
    g_optimizer: nnx.Optimizer,
    c_optimizer: nnx.Optimizer,
    real: Float[Array, "b d"],
    noise: Float[Array, "b z"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    def critic_loss(critic, generator):
        return jnp.mean(nnx.softplus(-critic(real))) + jnp.mean(nnx.softplus(critic(generator(noise))))

    def generator_loss(generator, critic):
        return jnp.mean(nnx.softplus(-critic(generator(noise))))

    c_loss, c_grads = nnx.value_and_grad(critic_loss)(critic, generator)
    c_optimizer.update(critic, c_grads)
    g_loss, g_grads = nnx.value_and_grad(generator_loss)(generator, critic)
    g_optimizer.update(generator, g_grads)
    return c_loss, g_loss


entry = gan_step


def sample():
    import optax

    generator, critic = Generator(3, 4, rngs=nnx.Rngs(0)), Critic(4, rngs=nnx.Rngs(1))
    optimizers = [nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param) for model in (generator, critic)]
    return gan_step(generator, critic, *optimizers, jnp.ones((5, 4)), jnp.ones((5, 3)))
