"""A variational autoencoder whose encoder draws from its own stream."""

import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Vae(nnx.Module):
    def __init__(self, d: int, latent: int, *, rngs: nnx.Rngs):
        self.encoder = nnx.Linear(d, 2 * latent, rngs=rngs)
        self.decoder = nnx.Linear(latent, d, rngs=rngs)
        self.rngs = rngs.fork()

    def __call__(self, x: Float[Array, "b d"]) -> tuple[Float[Array, "b d"], Float[Array, "b"]]:
        mean, log_var = jnp.split(self.encoder(x), 2, axis=-1)
        z = mean + jnp.exp(log_var / 2) * self.rngs.normal(mean.shape)
        kl = 0.5 * (mean**2 + jnp.exp(log_var) - 1 - log_var).sum(axis=-1)  # bug: kl = 0.5 * (mean**2 + jnp.exp(log_var) - 1 - log_var).sum(axis=0)
        return self.decoder(z), kl


def elbo(model: Vae, x: Float[Array, "b d"]) -> Float[Array, "b"]:
    reconstruction, kl = model(x)
    return ((x - reconstruction) ** 2).sum(axis=-1) + kl


entry = elbo


def sample():
    return elbo(Vae(6, 4, rngs=nnx.Rngs(0)), jnp.ones((4, 6)))
