"""A recurrent state-space model unrolled over actions, state as a dataclass."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    deter: Float[Array, "b h"]
    stoch: Float[Array, "b z"]


def imagine(
    w: Float[Array, "h+z+a h"], head: Float[Array, "h z"], state: State, actions: Float[Array, "t b a"]
) -> tuple[State, Float[Array, "t b h"]]:
    def step(state: State, action: Float[Array, "b a"]) -> tuple[State, Float[Array, "b h"]]:
        inputs = jnp.concatenate([state.deter, state.stoch, action], axis=-1)
        deter = jnp.tanh(inputs @ w)
        return State(deter, deter @ head), deter  # bug: return State(deter @ head, deter), deter

    return jax.lax.scan(step, state, actions)


entry = imagine


def sample():
    state = State(jnp.ones((2, 3)), jnp.ones((2, 3)))
    return imagine(jnp.ones((8, 3)), jnp.ones((3, 3)), state, jnp.ones((5, 2, 2)))
