"""One predict/update step of a Kalman filter."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class Belief(NamedTuple):
    mean: Float[Array, "s"]
    cov: Float[Array, "s s"]


def kalman_step(
    belief: Belief,
    obs: Float[Array, "o"],
    a: Float[Array, "s s"],
    c: Float[Array, "o s"],
    q: Float[Array, "s s"],
    r: Float[Array, "o o"],
) -> Belief:
    mean, cov = a @ belief.mean, a @ belief.cov @ a.T + q
    innovation = c @ cov @ c.T + r
    gain = cov @ c.T @ jnp.linalg.inv(innovation)  # bug: gain = c @ cov.T @ jnp.linalg.inv(innovation)
    return Belief(mean + gain @ (obs - c @ mean), cov - gain @ c @ cov)


entry = kalman_step


def sample():
    eye = jnp.eye(3)
    return kalman_step(Belief(jnp.ones(3), eye), jnp.ones(3), eye, eye, eye, eye)
