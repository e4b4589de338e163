"""A dueling Q-network: values and advantages of actions."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class Dueling(eqx.Module):
    trunk: eqx.nn.Linear
    value: eqx.nn.Linear
    advantage: eqx.nn.Linear

    def __init__(self, obs: int, hidden: int, actions: int, *, key: PRNGKeyArray):
        k = jax.random.split(key, 3)
        self.trunk = eqx.nn.Linear(obs, hidden, key=k[0])
        self.value = eqx.nn.Linear(hidden, 1, key=k[1])
        self.advantage = eqx.nn.Linear(hidden, actions, key=k[2])

    def __call__(self, x: Float[Array, "obs"]) -> Float[Array, "actions"]:
        h = jax.nn.relu(self.trunk(x))
        a = self.advantage(h)
        return self.value(h) + a - a.mean()

    def batch(self, x: Float[Array, "b obs"]) -> Float[Array, "b actions"]:
        return jax.vmap(self)(x)  # bug: return jax.vmap(self, in_axes=1)(x)


entry = Dueling(4, 8, 4, key=jax.random.key(0))


def sample():
    return entry.batch(jnp.ones((4, 4)))
