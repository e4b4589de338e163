"""A Fourier layer that mixes channels mode by mode."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, PRNGKeyArray


class SpectralConv1d(eqx.Module):
    weight: Complex[Array, "modes cin cout"]
    modes: int = eqx.field(static=True)

    def __init__(self, cin: int, cout: int, modes: int, *, key: PRNGKeyArray):
        k1, k2 = jax.random.split(key)
        shape = (modes, cin, cout)
        self.weight = (jax.random.normal(k1, shape) + 1j * jax.random.normal(k2, shape)) / cin
        self.modes = modes

    def __call__(self, x: Float[Array, "cin points"]) -> Float[Array, "cout points"]:
        ft = jnp.fft.rfft(x, axis=-1)
        out = jnp.zeros((self.weight.shape[2], ft.shape[1]), ft.dtype)
        mixed = jnp.einsum("im,mio->om", ft[:, : self.modes], self.weight)  # bug: mixed = jnp.einsum("im,moi->om", ft[:, : self.modes], self.weight)
        out = out.at[:, : self.modes].set(mixed)
        return jnp.fft.irfft(out, n=x.shape[-1], axis=-1)


entry = SpectralConv1d


def sample():
    return SpectralConv1d(4, 4, 3, key=jax.random.key(0))(jnp.ones((4, 16)))
