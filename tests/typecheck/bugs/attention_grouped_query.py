"""Grouped-query attention: several query heads share one key head."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def grouped_attention(
    q: Float[Array, "b t hq c"], k: Float[Array, "b s hk c"], v: Float[Array, "b s hk c"]
) -> Float[Array, "b t hq c"]:
    groups = q.shape[2] // k.shape[2]
    k = jnp.repeat(k, groups, axis=2)  # bug: k = jnp.repeat(k, groups, axis=1)
    v = jnp.repeat(v, groups, axis=2)  # bug: v = jnp.repeat(v, groups, axis=1)
    weights = jax.nn.softmax(jnp.einsum("bthc,bshc->bhts", q, k), axis=-1)
    return jnp.einsum("bhts,bshc->bthc", weights, v)


entry = grouped_attention


def sample():
    return grouped_attention(jnp.ones((2, 5, 4, 3)), jnp.ones((2, 5, 4, 3)), jnp.ones((2, 5, 4, 3)))
