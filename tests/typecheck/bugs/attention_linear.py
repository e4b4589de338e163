"""Linear attention with a positive feature map."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def linear_attention(
    q: Float[Array, "*batch t d"], k: Float[Array, "*batch s d"], v: Float[Array, "*batch s e"]
) -> Float[Array, "*batch t e"]:
    q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
    memory = jnp.einsum("...sd,...se->...de", k, v)
    norm = jnp.einsum("...td,...d->...t", q, k.sum(axis=-2))  # bug: norm = jnp.einsum("...td,...t->...d", q, k.sum(axis=-1))
    return jnp.einsum("...td,...de->...te", q, memory) / norm[..., None]


entry = linear_attention


def sample():
    x = jnp.ones((2, 4, 4))
    return linear_attention(x, x, x)
