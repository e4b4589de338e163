"""A generative adversarial network: two models, two optimizers, one step that updates both."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class Generator(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.net = nnx.Sequential(
            nnx.Linear(2, 16, rngs=rngs), nnx.BatchNorm(16, rngs=rngs), nnx.relu, nnx.Linear(16, 2, rngs=rngs)
        )
        self.rngs = rngs.fork()

    def __call__(self, count: int):
        return self.net(jax.random.normal(self.rngs.noise(), (count, 2)))


class Discriminator(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(2, 16, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(self.dropout(nnx.leaky_relu(self.hidden(x))))[:, 0]


def real_data(key):
    return jax.random.normal(key, (16, 2)) * 0.3 + jnp.array([2.0, -1.0])


@nnx.jit
def step(generator, discriminator, g_optimizer, d_optimizer, real):
    def d_loss_fn(discriminator, fake):
        on_real, on_fake = discriminator(real), discriminator(fake)
        return (nnx.softplus(-on_real) + nnx.softplus(on_fake)).mean()

    fake = jax.lax.stop_gradient(generator(16))
    d_loss, d_grads = nnx.value_and_grad(d_loss_fn)(discriminator, fake)
    d_optimizer.update(discriminator, d_grads)

    def g_loss_fn(generator, discriminator):
        return nnx.softplus(-discriminator(generator(16))).mean()

    g_loss, g_grads = nnx.value_and_grad(g_loss_fn)(generator, discriminator)
    g_optimizer.update(generator, g_grads)
    return d_loss, g_loss


rngs = nnx.Rngs(params=0, noise=1, dropout=2)
generator, discriminator = Generator(rngs), Discriminator(rngs)
g_optimizer = nnx.Optimizer(generator, optax.adam(1e-2, b1=0.5), wrt=nnx.Param)
d_optimizer = nnx.Optimizer(discriminator, optax.adam(1e-2, b1=0.5), wrt=nnx.Param)

for i in range(30):
    d_loss, g_loss = step(generator, discriminator, g_optimizer, d_optimizer, real_data(jax.random.key(i)))
    if i % 10 == 9:
        print(f"step {i}: discriminator {d_loss:.3f}, generator {g_loss:.3f}")

generator.eval()
print("mean of samples:", [round(x, 2) for x in generator(64).mean(0).tolist()])
print(
    "noise drawn:", int(generator.rngs.noise.count[...]), "dropout drawn:", int(discriminator.dropout.rngs.count[...])
)
print("optimizer steps:", int(g_optimizer.step[...]), int(d_optimizer.step[...]))
