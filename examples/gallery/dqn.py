"""Deep Q-learning on a cart with a pole: replay, and a target network that follows slowly."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
import weft
from gallery_data import Cart, act, reset

CARTS, ROOM, BATCH, DISCOUNT, DECAY = 16, 4096, 128, 0.98, 0.99


class State(NamedTuple):
    network: weft.MLP
    target: weft.MLP
    opt: weft.Optimizer
    carts: Cart
    replay: tuple[jax.Array, ...]
    time: jax.Array


def start(network, key):
    opt, carts = weft.Optimizer(network, optax.adam(1e-3)), jax.vmap(reset)(jax.random.split(key, CARTS))
    return State(network, network, opt, carts, tuple(jnp.zeros((ROOM, n)) for n in (4, 1, 1, 4, 1)), jnp.int32(0))


def make(key):
    return weft.MLP(4, 64, 64, 2, key=key)


def loss(network, target, before, action, reward, after, done):
    future = target(after)[jnp.arange(BATCH), network(after).argmax(-1)]
    goal = jax.lax.stop_gradient(reward[:, 0] + DISCOUNT * (1 - done[:, 0]) * future)
    values = jnp.take_along_axis(network(before), action.astype(int), axis=1)[:, 0]
    return optax.huber_loss(values, goal).mean()


def advance(state, key):
    keys = jax.random.split(key, 4)
    before = state.carts.state
    explore = jax.random.bernoulli(keys[0], jnp.maximum(0.05, 1 - state.time / 2000), (CARTS,))
    greedy = state.network(before).argmax(-1)
    action = jnp.where(explore, jax.random.randint(keys[1], (CARTS,), 0, 2), greedy)
    carts, reward, done = jax.vmap(act)(state.carts, action)
    fresh = jax.vmap(reset)(jax.random.split(keys[2], CARTS))
    rows = (state.time * CARTS + jnp.arange(CARTS)) % ROOM
    seen = before, action[:, None], reward[:, None], carts.state, done[:, None]
    replay = tuple(room.at[rows].set(new) for room, new in zip(state.replay, seen, strict=True))
    carts = jax.tree.map(lambda new, old: jnp.where(done.reshape(-1, *[1] * (old.ndim - 1)), new, old), fresh, carts)

    picked = jax.random.randint(keys[3], (BATCH,), 0, jnp.minimum(ROOM, (state.time + 1) * CARTS))
    seen = (room[picked] for room in replay)
    value, network, opt = state.opt.minimize(loss, state.network, state.target, *seen)
    target = weft.tree.ema(state.target, network, DECAY)
    return State(network, target, opt, carts, replay, state.time + 1), (value, done.sum())


play = weft.jit(weft.scan(advance))


def train(network, steps=10000):
    state = start(network, jax.random.key(1))
    state, (losses, falls) = play(state, jax.random.split(jax.random.key(2), steps))
    last = falls[-steps // 5 :]
    print(f"loss {losses[-1]:.4f}, a pole stands for {len(last) * CARTS / jnp.maximum(last.sum(), 1):.0f} steps")
    return losses.tolist()


if __name__ == "__main__":
    train(make(jax.random.key(0)))
