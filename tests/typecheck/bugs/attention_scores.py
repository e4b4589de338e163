"""Scaled dot-product attention over one head, written with einsum."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def attend(q: Float[Array, "b t d"], k: Float[Array, "b s d"], v: Float[Array, "b s e"]) -> Float[Array, "b t e"]:
    scores = jnp.einsum("btd,bsd->bts", q, k) / jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bts,bse->bte", weights, v)  # bug: return jnp.einsum("bts,bte->bse", weights, v)


entry = attend


def sample():
    x = jnp.ones((2, 6, 6))
    return attend(x, x, x)
