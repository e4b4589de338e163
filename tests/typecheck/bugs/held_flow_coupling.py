"""An affine coupling layer and its log-determinant."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float


def coupling(
    x: Float[Array, "b 2*d"], net: Callable[[Float[Array, "b d"]], Float[Array, "b 2*d"]]
) -> tuple[Float[Array, "b 2*d"], Float[Array, "b"]]:
    fixed, moved = jnp.split(x, 2, axis=-1)
    log_scale, shift = jnp.split(net(fixed), 2, axis=-1)
    y = jnp.concatenate([fixed, moved * jnp.exp(log_scale) + shift], axis=-1)
    return y, log_scale.sum(axis=-1)  # bug: return y, log_scale.sum(axis=0)


entry = coupling


def sample():
    return coupling(jnp.ones((2, 4)), lambda h: jnp.concatenate([h, h], -1))
