"""Grouped-query attention with checks at the start."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def gqa(
    q: Float[Array, "b t hq d"], k: Float[Array, "b t hk d"], v: Float[Array, "b t hk d"]
) -> Float[Array, "b t hq d"]:
    b, t, hq, d = q.shape
    hk = k.shape[2]
    assert hq % hk == 0, "query heads must be a multiple of key heads"
    k = jnp.repeat(k, hq // hk, axis=2)
    v = jnp.repeat(v, hq // hk, axis=2)  # bug: v = jnp.tile(v, (1, hq // hk, 1, 1)).reshape(b, t, hq, d)
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) * d**-0.5
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)


entry = gqa


def sample():
    return gqa(jnp.ones((2, 3, 4, 5)), jnp.ones((2, 3, 2, 5)), jnp.ones((2, 3, 2, 5)))
