"""A recurrent state kept in a TypedDict, stepped under scan."""

from typing import TypedDict

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class RSSMState(TypedDict):
    deter: Float[Array, "batch deter"]
    stoch: Float[Array, "batch stoch"]


class Weights(TypedDict):
    recur: Float[Array, "deter+stoch+act deter"]
    prior: Float[Array, "deter stoch"]


def imagine(
    w: Weights, state: RSSMState, actions: Float[Array, "time batch act"], key: PRNGKeyArray
) -> tuple[RSSMState, Float[Array, "time batch stoch"]]:
    def step(s, inp):
        a, k = inp
        deter = jnp.tanh(jnp.concatenate([s["deter"], s["stoch"], a], axis=-1) @ w["recur"])
        mean = deter @ w["prior"]
        stoch = mean + jax.random.normal(k, mean.shape)
        return {"deter": deter, "stoch": stoch}, stoch  # bug: return {"deter": stoch, "stoch": deter}, stoch

    return jax.lax.scan(step, state, (actions, jax.random.split(key, actions.shape[0])))


entry = imagine


def sample():
    s = {"deter": jnp.ones((2, 3)), "stoch": jnp.ones((2, 3))}
    w = {"recur": jnp.ones((8, 3)), "prior": jnp.ones((3, 3))}
    return imagine(w, s, jnp.ones((4, 2, 2)), jax.random.key(0))
