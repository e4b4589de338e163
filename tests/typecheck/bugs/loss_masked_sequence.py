"""Token losses averaged over the tokens that count, under jit and value_and_grad."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def token_loss(
    table: Float[Array, "v d"], tokens: Int[Array, "b s"], hidden: Float[Array, "b s d"], keep: Bool[Array, "b s"]
) -> Float[Array, ""]:
    logits = hidden @ table.T
    nll = -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1)[..., 0]
    per_row = (nll * keep).sum(axis=1) / keep.sum(axis=1)  # bug: per_row = (nll * keep).sum(axis=1) / keep.sum(axis=1, keepdims=True)
    return per_row.mean()


@jax.jit
def update(
    table: Float[Array, "v d"], tokens: Int[Array, "b s"], hidden: Float[Array, "b s d"], keep: Bool[Array, "b s"]
) -> tuple[Float[Array, ""], Float[Array, "v d"]]:
    loss, grads = jax.value_and_grad(token_loss)(table, tokens, hidden, keep)
    return loss, table - 0.1 * grads


entry = update


def sample():
    return update(jnp.ones((7, 3)), jnp.zeros((2, 4), int), jnp.ones((2, 4, 3)), jnp.ones((2, 4), bool))
