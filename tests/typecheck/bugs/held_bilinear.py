"""A bilinear scorer of pairs, by vmap twice."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def score(w: Float[Array, "p q"], x: Float[Array, "p"], y: Float[Array, "q"]) -> Float[Array, ""]:
    return x @ w @ y


def score_all(w: Float[Array, "p q"], xs: Float[Array, "n p"], ys: Float[Array, "m q"]) -> Float[Array, "n m"]:
    per_x = jax.vmap(score, in_axes=(None, None, 0))
    return jax.vmap(per_x, in_axes=(None, 0, None))(w, xs, ys)  # bug: return jax.vmap(per_x, in_axes=(None, 0, None), out_axes=1)(w, xs, ys)


entry = score_all


def sample():
    return score_all(jnp.ones((2, 3)), jnp.ones((5, 2)), jnp.ones((5, 3)))
