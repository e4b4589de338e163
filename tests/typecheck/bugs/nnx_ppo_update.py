"""Minibatch updates by `nnx.scan`, the model and its optimizer in the carry."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from weft import nnx


class Agent(nnx.Module):
    def __init__(self, o: int, a: int, *, rngs: nnx.Rngs):
        self.pi = nnx.Linear(o, a, rngs=rngs)
        self.v = nnx.Linear(o, 1, rngs=rngs)

    def __call__(self, x: Float[Array, "b o"]) -> tuple[Float[Array, "b a"], Float[Array, "b"]]:
        return self.pi(x), self.v(x)[..., 0]


def ppo_loss(
    agent: Agent,
    x: Float[Array, "b o"],
    a: Int[Array, "b"],
    old: Float[Array, "b"],
    advantage: Float[Array, "b"],
) -> Float[Array, ""]:
    logits, value = agent(x)
    logp = jnp.take_along_axis(nnx.log_softmax(logits), a[:, None], 1)[:, 0]  # bug: logp = jnp.take_along_axis(nnx.log_softmax(logits), a[:, None], 1)
    ratio = jnp.exp(logp - old)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean() + value.mean()


def update(
    agent: Agent,
    opt: nnx.Optimizer,
    x: Float[Array, "m b o"],
    a: Int[Array, "m b"],
    old: Float[Array, "m b"],
    advantage: Float[Array, "m b"],
) -> Float[Array, "m"]:
    @nnx.scan(in_axes=(nnx.Carry, 0, 0, 0, 0), out_axes=(nnx.Carry, 0))
    def run(carry, x, a, old, advantage):
        agent, opt = carry
        loss, grads = nnx.value_and_grad(ppo_loss)(agent, x, a, old, advantage)
        opt.update(agent, grads)
        return (agent, opt), loss

    return run((agent, opt), x, a, old, advantage)[1]


entry = update


def sample():
    import optax

    agent = Agent(3, 4, rngs=nnx.Rngs(0))
    opt = nnx.Optimizer(agent, optax.adam(1e-3), wrt=nnx.Param)
    z = jnp.zeros((2, 5))
    return update(agent, opt, jnp.ones((2, 5, 3)), z.astype(int), z, z)
