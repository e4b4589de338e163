"""Structural similarity of two images."""

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Float

Image: TypeAlias = Float[jnp.ndarray, "height width channels"]


def local_mean(img: Image, size: int = 3) -> Image:
    kernel = jnp.ones((size,)) / size
    smooth = jax.vmap(jax.vmap(lambda row: jnp.convolve(row, kernel, mode="same"), 1, 1), 0, 0)(img)
    return jax.vmap(jax.vmap(lambda row: jnp.convolve(row, kernel, mode="same"), 1, 1), 1, 1)(smooth)


def ssim(a: Image, b: Image, c1: float = 0.01, c2: float = 0.03) -> Float[jnp.ndarray, "channels"]:
    mu_a, mu_b = local_mean(a), local_mean(b)
    var_a = local_mean(a * a) - mu_a**2
    var_b = local_mean(b * b) - mu_b**2
    cov = local_mean(a * b) - mu_a * mu_b
    score = (2 * mu_a * mu_b + c1) * (2 * cov + c2) / ((mu_a**2 + mu_b**2 + c1) * (var_a + var_b + c2))
    return score.mean(axis=(0, 1))  # bug: return score.mean(axis=(1, 2))


entry = ssim


def sample():
    return ssim(jnp.ones((3, 5, 3)), jnp.ones((3, 5, 3)))
