"""A world model rolled out by `jax.lax.scan` on a merged copy."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from weft import nnx


class World(nnx.Module):
    def __init__(self, s: int, a: int, *, rngs: nnx.Rngs):
        self.cell = nnx.Linear(s + a, s, rngs=rngs)
        self.reward = nnx.Linear(s, 1, rngs=rngs)

    def step(self, state: Float[Array, "s"], action: Float[Array, "a"]) -> tuple[Float[Array, "s"], Float[Array, ""]]:
        state = jnp.tanh(self.cell(jnp.concatenate([state, action])))
        return state, self.reward(state)[0]


def rollout(model: World, start: Float[Array, "b s"], actions: Float[Array, "b t a"]) -> Float[Array, "b t"]:
    def roll(start, actions):
        return jax.lax.scan(model.step, start, actions)[1]

    return jax.vmap(roll)(start, actions)  # bug: return jax.vmap(roll, in_axes=(0, 0), out_axes=1)(start, actions)


entry = rollout


def sample():
    return rollout(World(3, 2, rngs=nnx.Rngs(0)), jnp.ones((4, 3)), jnp.ones((4, 4, 2)))
