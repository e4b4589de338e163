"""A policy gradient on a chain of states: sampling with streams, a baseline, and episodes by scan inside of jit."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

STATES, ACTIONS, STEPS = 5, 2, 8


class Baseline(nnx.Variable):
    """A running mean of returns."""


class Policy(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(STATES, 8, rngs=rngs)
        self.out = nnx.Linear(8, ACTIONS, kernel_init=nnx.initializers.zeros_init(), rngs=rngs)
        self.baseline = Baseline(jnp.zeros(()))
        self.rngs = rngs

    def logits(self, state):
        return self.out(nnx.tanh(self.hidden(jax.nn.one_hot(state, STATES))))


def environment(state, action):
    state = jnp.clip(state + jnp.where(action == 1, 1, -1), 0, STATES - 1)
    return state, (state == STATES - 1).astype(jnp.float32)


def episode(policy: Policy):
    @nnx.scan(in_axes=(nnx.Carry, None), out_axes=(nnx.Carry, 0), length=STEPS)
    def act(carry, policy):
        state, key = carry
        key, draw = jax.random.split(key)
        logits = policy.logits(state)
        action = jax.random.categorical(draw, logits)
        state, reward = environment(state, action)
        return (state, key), (jax.nn.log_softmax(logits)[action], reward)

    _, (log_probs, rewards) = act((jnp.array(0), policy.rngs.action()), policy)
    return log_probs, rewards


def loss_fn(policy: Policy):
    log_probs, rewards = episode(policy)
    returns = jnp.cumsum(rewards[::-1])[::-1]
    advantage = returns - policy.baseline[...]
    policy.baseline[...] = 0.9 * policy.baseline[...] + 0.1 * returns[0]
    return -(log_probs * jax.lax.stop_gradient(advantage)).sum(), rewards.sum()


@nnx.jit
def train_step(policy, optimizer):
    (_, total), grads = nnx.value_and_grad(loss_fn, has_aux=True)(policy)
    optimizer.update(policy, grads)
    return total


policy = Policy(nnx.Rngs(params=0, action=1))
optimizer = nnx.Optimizer(policy, optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.03)), wrt=nnx.Param)
totals = [train_step(policy, optimizer) for _ in range(60)]
for i in range(0, 60, 20):
    print(f"episodes {i} to {i + 19}: {float(jnp.stack(totals[i : i + 20]).mean()):.2f}")
print(f"baseline {policy.baseline[...]:.3f}, keys drawn {int(policy.rngs.action.count[...])}")
print("best actions:", [int(policy.logits(jnp.array(state)).argmax()) for state in range(STATES)])
