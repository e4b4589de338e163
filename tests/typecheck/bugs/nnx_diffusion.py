"""The loss of a denoising diffusion model, with its noise drawn from `nnx.Rngs`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class Denoiser(nnx.Module):
    def __init__(self, d: int, width: int, *, rngs: nnx.Rngs):
        self.inner = nnx.Linear(d + 1, width, rngs=rngs)
        self.outer = nnx.Linear(width, d, rngs=rngs)

    def __call__(self, x: Float[Array, "b d"], t: Float[Array, "b"]) -> Float[Array, "b d"]:
        return self.outer(nnx.silu(self.inner(jnp.concatenate([x, t[:, None]], axis=-1))))


def diffusion_loss(model: Denoiser, x: Float[Array, "b d"], rngs: nnx.Rngs) -> Float[Array, ""]:
    t = jax.random.uniform(rngs.noise(), (x.shape[0],))
    noise = jax.random.normal(rngs.noise(), x.shape)
    alpha = jnp.cos(t * jnp.pi / 2)[:, None]  # bug: alpha = jnp.cos(t * jnp.pi / 2)
    noisy = alpha * x + jnp.sqrt(1 - alpha**2) * noise
    return jnp.mean((model(noisy, t) - noise) ** 2)


entry = diffusion_loss


def sample():
    return diffusion_loss(Denoiser(4, 8, rngs=nnx.Rngs(0)), jnp.ones((4, 4)), nnx.Rngs(1))
