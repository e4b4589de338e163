"""The ELBO of a small VAE with a NamedTuple posterior."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class Posterior(NamedTuple):
    mean: Float[Array, "b z"]
    log_var: Float[Array, "b z"]


def encode(w: Float[Array, "x 2*z"], x: Float[Array, "b x"]) -> Posterior:
    mean, log_var = jnp.split(x @ w, 2, axis=-1)
    return Posterior(mean, log_var)


def elbo(
    key: PRNGKeyArray, enc: Float[Array, "x 2*z"], dec: Float[Array, "z x"], x: Float[Array, "b x"]
) -> Float[Array, "b"]:
    q = encode(enc, x)
    z = q.mean + jnp.exp(0.5 * q.log_var) * jax.random.normal(key, q.mean.shape)
    likelihood = -0.5 * jnp.sum((x - z @ dec) ** 2, axis=-1)
    kl = -0.5 * jnp.sum(1 + q.log_var - q.mean**2 - jnp.exp(q.log_var), axis=-1)  # bug: kl = -0.5 * jnp.sum(1 + q.log_var - q.mean**2 - jnp.exp(q.log_var), axis=-1, keepdims=True)
    return likelihood - kl  # bug: return (likelihood - kl).mean(axis=0)


entry = elbo


def sample():
    return elbo(jax.random.key(0), jnp.ones((6, 4)), jnp.ones((2, 6)), jnp.ones((3, 6)))
