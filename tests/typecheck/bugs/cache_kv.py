"""A key/value cache that grows by one position a step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class KVCache(NamedTuple):
    k: Float[Array, "b max_len h c"]
    v: Float[Array, "b max_len h c"]
    length: Int[Array, ""]


def append(cache: KVCache, k: Float[Array, "b h c"], v: Float[Array, "b h c"]) -> KVCache:
    new_k = jax.lax.dynamic_update_slice_in_dim(cache.k, k[:, None], cache.length, axis=1)  # bug: new_k = cache.k.at[:, :, cache.length].set(k)
    new_v = jax.lax.dynamic_update_slice_in_dim(cache.v, v[:, None], cache.length, axis=1)  # bug: new_v = cache.v.at[:, :, cache.length].set(v)
    return KVCache(new_k, new_v, cache.length + 1)


entry = append


def sample():
    cache = KVCache(jnp.ones((2, 4, 4, 3)), jnp.ones((2, 4, 4, 3)), jnp.array(0))
    return append(cache, jnp.ones((2, 4, 3)), jnp.ones((2, 4, 3)))
