"""Switch-style routing: a one-hot dispatch tensor sends tokens to experts."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray


class Switch(eqx.Module):
    router: Float[Array, "experts dim"]
    up: Float[Array, "experts dim hidden"]
    down: Float[Array, "experts hidden dim"]

    def __init__(self, dim: int, hidden: int, experts: int, *, key: PRNGKeyArray):
        keys = jax.random.split(key, 3)
        self.router = jax.random.normal(keys[0], (experts, dim))
        self.up = jax.random.normal(keys[1], (experts, dim, hidden))
        self.down = jax.random.normal(keys[2], (experts, hidden, dim))

    def __call__(self, x: Float[Array, "tokens dim"]) -> Float[Array, "tokens dim"]:
        logits = x @ self.router.T
        choice: Int[Array, "tokens"] = jnp.argmax(logits, axis=-1)  # bug: choice = jnp.argmax(logits, axis=0)
        dispatch = jax.nn.one_hot(choice, self.router.shape[0])
        inputs = jnp.einsum("te,td->etd", dispatch, x)
        hidden = jax.nn.gelu(inputs @ self.up)
        return jnp.einsum("etd->td", hidden @ self.down)


entry = Switch(4, 8, 4, key=jax.random.key(0))


def sample():
    return entry(jnp.ones((4, 4)))
