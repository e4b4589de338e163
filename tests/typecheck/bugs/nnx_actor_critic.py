"""Advantages of an actor-critic with two heads."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from weft import nnx


class ActorCritic(nnx.Module):
    def __init__(self, o: int, width: int, a: int, *, rngs: nnx.Rngs):
        self.torso = nnx.Sequential(nnx.Linear(o, width, rngs=rngs), nnx.relu)
        self.actor = nnx.Linear(width, a, rngs=rngs)
        self.critic = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, x: Float[Array, "b o"]) -> tuple[Float[Array, "b a"], Float[Array, "b"]]:
        h = self.torso(x)
        return self.actor(h), self.critic(h).squeeze(-1)


def advantage_loss(
    model: ActorCritic, x: Float[Array, "b o"], actions: Int[Array, "b"], returns: Float[Array, "b"]
) -> Float[Array, ""]:
    logits, values = model(x)
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[:, None], axis=1)[:, 0]  # bug: log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[:, None], axis=1)
    advantages = jax.lax.stop_gradient(returns - values)
    return jnp.mean(-log_p * advantages) + jnp.mean((returns - values) ** 2)


entry = advantage_loss


def sample():
    return advantage_loss(ActorCritic(3, 8, 4, rngs=nnx.Rngs(0)), jnp.ones((5, 3)), jnp.zeros(5, int), jnp.ones(5))
