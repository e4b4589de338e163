"""Accepting drafted tokens by comparing two models' probabilities."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray


def accept(
    key: PRNGKeyArray, draft: Float[Array, "b k v"], target: Float[Array, "b k v"], tokens: Int[Array, "b k"]
) -> tuple[Bool[Array, "b k"], Int[Array, "b"]]:
    p = jnp.take_along_axis(target, tokens[..., None], axis=-1)[..., 0]
    q = jnp.take_along_axis(draft, tokens[..., None], axis=-1)[..., 0]
    ok = jax.random.uniform(key, p.shape) < p / q
    run = jnp.cumprod(ok, axis=1).astype(bool)
    return run, run.sum(axis=1)  # bug: return run, run.sum(axis=0)


entry = accept


def sample():
    x = jnp.ones((4, 4, 5))
    return accept(jax.random.key(0), x, x, jnp.zeros((4, 4), int))
