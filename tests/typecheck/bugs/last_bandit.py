"""Thompson sampling over arms, jitted with static arguments."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray


@partial(jax.jit, static_argnames=("num_draws",))
def thompson(
    key: PRNGKeyArray, mean: Float[Array, "arms"], std: Float[Array, "arms"], num_draws: int
) -> Int[Array, "num_draws"]:
    noise = jax.random.normal(key, (num_draws, mean.shape[0]))
    draws = mean + std * noise
    return jnp.argmax(draws, axis=1)  # bug: return jnp.argmax(draws, axis=0)


entry = thompson


def sample():
    return thompson(jax.random.key(0), jnp.ones(3), jnp.ones(3), num_draws=3)
