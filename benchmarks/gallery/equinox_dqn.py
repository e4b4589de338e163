"""Deep Q-learning on a cart with a pole: replay, and a target network that follows slowly, in equinox."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from gallery_data import Cart, act, reset

CARTS, ROOM, BATCH, DISCOUNT, DECAY = 16, 4096, 128, 0.98, 0.99
optimizer = optax.adam(1e-3)


class State(NamedTuple):
    network: eqx.nn.MLP
    target: eqx.nn.MLP
    opt_state: optax.OptState
    carts: Cart
    replay: tuple[jax.Array, ...]
    time: jax.Array


def start(network, key):
    opt_state = optimizer.init(eqx.filter(network, eqx.is_inexact_array))
    carts = jax.vmap(reset)(jax.random.split(key, CARTS))
    return State(network, network, opt_state, carts, tuple(jnp.zeros((ROOM, n)) for n in (4, 1, 1, 4, 1)), jnp.int32(0))


def make(key):
    return eqx.nn.MLP(4, 2, 64, depth=2, key=key)


def loss(network, target, before, action, reward, after, done):
    future = jax.vmap(target)(after)[jnp.arange(BATCH), jax.vmap(network)(after).argmax(-1)]
    goal = jax.lax.stop_gradient(reward[:, 0] + DISCOUNT * (1 - done[:, 0]) * future)
    values = jnp.take_along_axis(jax.vmap(network)(before), action.astype(int), axis=1)[:, 0]
    return optax.huber_loss(values, goal).mean()


def followed(target, network):
    arrays, static = eqx.partition(network, eqx.is_inexact_array)
    return eqx.combine(optax.incremental_update(arrays, eqx.filter(target, eqx.is_inexact_array), 1 - DECAY), static)


def advance(state, key):
    keys = jax.random.split(key, 4)
    before = state.carts.state
    explore = jax.random.bernoulli(keys[0], jnp.maximum(0.05, 1 - state.time / 2000), (CARTS,))
    greedy = jax.vmap(state.network)(before).argmax(-1)
    action = jnp.where(explore, jax.random.randint(keys[1], (CARTS,), 0, 2), greedy)
    carts, reward, done = jax.vmap(act)(state.carts, action)
    fresh = jax.vmap(reset)(jax.random.split(keys[2], CARTS))
    rows = (state.time * CARTS + jnp.arange(CARTS)) % ROOM
    seen = before, action[:, None], reward[:, None], carts.state, done[:, None]
    replay = tuple(room.at[rows].set(new) for room, new in zip(state.replay, seen, strict=True))
    carts = jax.tree.map(lambda new, old: jnp.where(done.reshape(-1, *[1] * (old.ndim - 1)), new, old), fresh, carts)

    picked = jax.random.randint(keys[3], (BATCH,), 0, jnp.minimum(ROOM, (state.time + 1) * CARTS))
    value, gradient = eqx.filter_value_and_grad(loss)(state.network, state.target, *(room[picked] for room in replay))
    updates, opt_state = optimizer.update(gradient, state.opt_state)
    network = eqx.apply_updates(state.network, updates)
    target = followed(state.target, network)
    return State(network, target, opt_state, carts, replay, state.time + 1), (value, done.sum())


@eqx.filter_jit
def play(state, keys):
    arrays, static = eqx.partition(state, eqx.is_array)

    def step(arrays, key):
        state, seen = advance(eqx.combine(arrays, static), key)
        return eqx.filter(state, eqx.is_array), seen

    arrays, seen = jax.lax.scan(step, arrays, keys)
    return eqx.combine(arrays, static), seen


def train(network, steps=10000):
    state = start(network, jax.random.key(1))
    state, (losses, falls) = play(state, jax.random.split(jax.random.key(2), steps))
    last = falls[-steps // 5 :]
    print(f"loss {losses[-1]:.4f}, a pole stands for {len(last) * CARTS / jnp.maximum(last.sum(), 1):.0f} steps")
    return losses.tolist()


if __name__ == "__main__":
    train(make(jax.random.key(0)))
