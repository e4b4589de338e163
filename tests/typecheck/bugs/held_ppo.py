"""PPO's clipped objective over a rollout, reshaped into minibatches."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def flatten(x: Float[Array, "t n *rest"]) -> Float[Array, "t*n *rest"]:
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def ppo_loss(
    logp: Float[Array, "t n"], old_logp: Float[Array, "t n"], adv: Float[Array, "t n"], clip: float = 0.2
) -> Float[Array, ""]:
    ratio = jnp.exp(flatten(logp) - flatten(old_logp))
    adv = flatten(adv)
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    return -jnp.minimum(ratio * adv, clipped * adv).mean()  # bug: return -jnp.minimum(ratio * adv, clipped[:, None] * adv).mean()


entry = ppo_loss


def sample():
    x = jnp.ones((3, 4))
    return ppo_loss(x, x, x)
