"""A policy over a library's layers, in a log-probability that says how many observations and actions."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray


class Policy(eqx.Module):
    body: eqx.nn.MLP
    head: eqx.nn.Linear
    log_std: Float[Array, "act"]
    def __init__(self, obs: int, act: int, *, key: PRNGKeyArray):
        a, b = jax.random.split(key)
        self.body = eqx.nn.MLP(obs, 32, 32, 2, key=a)
        self.head = eqx.nn.Linear(32, act, key=b)
        self.log_std = jnp.zeros(act)
    def __call__(self, o: Float[Array, "obs"]) -> tuple[Float[Array, "act"], Float[Array, "act"]]:
        return self.head(self.body(o)), jnp.exp(self.log_std)

def log_prob(policy: Policy, obs: Float[Array, "n 17"], action: Float[Array, "n 6"]) -> Float[Array, "n"]:
    mean, std = jax.vmap(policy)(obs)
    return jnp.sum(-0.5 * ((action - mean) / std) ** 2 - jnp.log(std), axis=-1)  # bug: return jnp.sum(-0.5 * ((action - mean) / std) ** 2 - jnp.log(std), axis=0)

entry = log_prob
def sample(): return log_prob(Policy(17, 6, key=jax.random.key(0)), jnp.ones((6, 17)), jnp.ones((6, 6)))
