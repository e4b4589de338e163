"""Random Fourier features of coordinates, with and without the input."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class FourierFeatures(eqx.Module):
    freqs: Float[Array, "coords bands"]
    include_input: bool = eqx.field(static=True)

    def __init__(self, coords: int, bands: int, include_input: bool = False, *, key: PRNGKeyArray):
        self.freqs = jax.random.normal(key, (coords, bands))  # bug: self.freqs = jax.random.normal(key, (bands, coords))
        self.include_input = include_input

    def __call__(self, x: Float[Array, "*n coords"]) -> Float[Array, "*n feats"]:
        proj = 2 * jnp.pi * x @ self.freqs
        parts = [jnp.sin(proj), jnp.cos(proj)] + ([x] if self.include_input else [])
        return jnp.concatenate(parts, axis=-1)


entry = FourierFeatures


def sample():
    return FourierFeatures(3, 3, key=jax.random.key(0))(jnp.ones((4, 3)))
