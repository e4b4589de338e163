"""Mean pooling of token embeddings by a mask, with a keepdims division."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def mean_pool(x: Float[Array, "b s d"], mask: Bool[Array, "b s"]) -> Float[Array, "b d"]:
    weights = mask / mask.sum(axis=-1, keepdims=True)  # bug: weights = mask / mask.sum(axis=-1)
    return jnp.einsum("bsd,bs->bd", x, weights)


entry = mean_pool


def sample():
    return mean_pool(jnp.ones((4, 4, 3)), jnp.ones((4, 4), bool))
