"""Forward diffusion: noise images to a given timestep."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray


def q_sample(
    x: Float[Array, "b h w c"], t: Int[Array, "b"], alpha_bar: Float[Array, "steps"], key: PRNGKeyArray
) -> Float[Array, "b h w c"]:
    noise = jax.random.normal(key, x.shape)
    a = alpha_bar[t][:, None, None, None]  # bug: a = alpha_bar[t]
    return jnp.sqrt(a) * x + jnp.sqrt(1 - a) * noise


entry = q_sample


def sample():
    return q_sample(jnp.ones((3, 3, 3, 3)), jnp.zeros(3, int), jnp.ones(10), jax.random.key(0))
