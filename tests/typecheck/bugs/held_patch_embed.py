"""Image patches as tokens."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def patchify(
    images: Float[Array, "b h w c"], proj: Float[Array, "p*p*c d"], p: int
) -> Float[Array, "b (h//p)*(w//p) d"]:
    b, h, w, c = images.shape
    x = images.reshape(b, h // p, p, w // p, p, c)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(b, (h // p) * (w // p), p * p * c)  # bug: x = x.reshape(b, (h // p) * (w // p), p * p * c)
    return x @ proj


entry = patchify


def sample():
    return patchify(jnp.ones((2, 4, 4, 3)), jnp.ones((12, 5)), 2)
