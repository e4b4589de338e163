"""A diagonal state-space layer by associative scan."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def ssm(
    x: Float[Array, "t d"], a: Float[Array, "t d n"], b: Float[Array, "t n"], c: Float[Array, "t n"]
) -> Float[Array, "t d"]:
    def combine(earlier, later):
        return earlier[0] * later[0], later[0] * earlier[1] + later[1]

    inputs = x[:, :, None] * b[:, None, :]
    _, states = jax.lax.associative_scan(combine, (a, inputs))
    return jnp.einsum("tdn,tn->td", states, c)  # bug: return jnp.einsum("tdn,td->tn", states, c)


entry = ssm


def sample():
    return ssm(jnp.ones((3, 4)), jnp.ones((3, 4, 4)), jnp.ones((3, 4)), jnp.ones((3, 4)))
