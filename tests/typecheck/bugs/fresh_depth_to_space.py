"""Sub-pixel upsampling with a checked channel count."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def depth_to_space(x: Float[Array, "b h w c*r*r"], r: int) -> Float[Array, "b h*r w*r c"]:
    b, h, w, cr = x.shape
    c = cr // (r * r)
    y = x.reshape(b, h, w, r, r, c)
    y = y.transpose(0, 1, 3, 2, 4, 5)  # bug: y = y.transpose(0, 1, 2, 3, 4, 5)
    return y.reshape(b, h * r, w * r, c)


entry = depth_to_space


def sample():
    return depth_to_space(jnp.ones((1, 3, 3, 8)), 2)
