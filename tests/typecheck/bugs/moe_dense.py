"""A soft mixture of experts: every expert runs, gates weigh them."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def mixture(
    x: Float[Array, "n d"], gate: Float[Array, "d e"], w_in: Float[Array, "e d f"], w_out: Float[Array, "e f d"]
) -> Float[Array, "n d"]:
    weights = jax.nn.softmax(x @ gate, axis=-1)
    hidden = jax.nn.relu(jnp.einsum("nd,edf->enf", x, w_in))
    out = jnp.einsum("enf,efd->end", hidden, w_out)
    return jnp.einsum("end,ne->nd", out, weights)  # bug: return jnp.einsum("end,en->nd", out, weights)


entry = mixture


def sample():
    return mixture(jnp.ones((4, 3)), jnp.ones((3, 4)), jnp.ones((4, 3, 5)), jnp.ones((4, 5, 3)))
