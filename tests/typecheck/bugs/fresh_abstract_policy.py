"""An abstract policy with a Gaussian and a discrete implementation."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray


class Policy(eqx.Module):
    @abc.abstractmethod
    def log_prob(self, obs: Float[Array, "obs"], act: Float[Array, "act"]) -> Float[Array, ""]:
        raise NotImplementedError


class GaussianPolicy(Policy):
    mean: Float[Array, "act obs"]
    chol: Float[Array, "act act"]

    def dist(self, obs: Float[Array, "obs"]) -> Float[Array, "act"]:
        return self.mean @ obs

    def log_prob(self, obs: Float[Array, "obs"], act: Float[Array, "act"]) -> Float[Array, ""]:
        diff = act - self.dist(obs)
        z = jax.scipy.linalg.solve_triangular(self.chol, diff, lower=True)
        return -0.5 * jnp.sum(z**2) - jnp.sum(jnp.log(jnp.diag(self.chol)))

    def sample(self, obs: Float[Array, "obs"], key: PRNGKeyArray) -> Float[Array, "act"]:
        noise = jax.random.normal(key, (self.chol.shape[0],))  # bug: noise = jax.random.normal(key, obs.shape)
        return self.dist(obs) + self.chol @ noise


entry = GaussianPolicy


def sample():
    p = GaussianPolicy(jnp.ones((3, 3)), jnp.eye(3))
    return p.sample(jnp.ones(3), jax.random.key(0))
