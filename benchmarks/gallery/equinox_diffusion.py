"""A diffusion model of digits: bfloat16 inside, an average of the parameters, saved and resumed, in equinox."""

import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from gallery_data import batches, digits

DIM, DECAY = 128, 0.99
optimizer = optax.adamw(2e-3)


class Denoiser(eqx.Module):
    inputs: eqx.nn.Linear
    time: eqx.nn.Linear
    layers: list[eqx.nn.Sequential]
    output: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 5)
        self.inputs = eqx.nn.Linear(64, DIM, key=keys[0])
        self.time = eqx.nn.Linear(32, DIM, key=keys[1])
        mlp = partial(eqx.nn.MLP, DIM, DIM, DIM, depth=1, activation=jax.nn.silu)
        self.layers = [eqx.nn.Sequential([eqx.nn.LayerNorm(DIM), mlp(key=key)]) for key in keys[2:4]]
        self.output = eqx.nn.Linear(DIM, 64, key=keys[4])

    def __call__(self, x, time):
        h = self.inputs(x) + self.time(time)
        for layer in self.layers:
            h = h + layer(h)
        return self.output(h)


class State(NamedTuple):
    model: Denoiser
    average: Denoiser
    opt_state: optax.OptState
    time: jax.Array


def start(model):
    return State(model, model, optimizer.init(eqx.filter(model, eqx.is_inexact_array)), jnp.int32(0))


def make(key):
    return Denoiser(key)


def cast(tree, dtype):
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, tree)


def waves(t):
    angles = 100 * t[:, None] * 100.0 ** (-jnp.arange(16) / 16)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)


def denoise(model, x, t):
    return jax.vmap(cast(model, jnp.bfloat16))(*cast((x, waves(t)), jnp.bfloat16)).astype(jnp.float32)


def loss(model, images, key):
    x = 2 * images.reshape(-1, 64) - 1
    key1, key2 = jax.random.split(key)
    t, noise = jax.random.uniform(key1, (len(x),)), jax.random.normal(key2, x.shape)
    angle = 0.5 * jnp.pi * t[:, None]
    return jnp.mean((denoise(model, jnp.cos(angle) * x + jnp.sin(angle) * noise, t) - noise) ** 2)


def followed(average, model):
    arrays, static = eqx.partition(model, eqx.is_inexact_array)
    return eqx.combine(optax.incremental_update(arrays, eqx.filter(average, eqx.is_inexact_array), 1 - DECAY), static)


@eqx.filter_jit
def step(state, images):
    key = jax.random.fold_in(jax.random.key(1), state.time)
    value, gradient = eqx.filter_value_and_grad(loss)(state.model, images, key)
    updates, opt_state = optimizer.update(gradient, state.opt_state, eqx.filter(state.model, eqx.is_inexact_array))
    model = eqx.apply_updates(state.model, updates)
    return State(model, followed(state.average, model), opt_state, state.time + 1), value


@eqx.filter_jit
def sample(model, key, count=16, steps=20):
    def back(i, x):
        now, after = 0.5 * jnp.pi * (1 - i / (steps + 1)), 0.5 * jnp.pi * (1 - (i + 1) / (steps + 1))
        noise = denoise(model, x, jnp.full(count, now / (0.5 * jnp.pi)))
        clean = jnp.clip((x - jnp.sin(now) * noise) / jnp.maximum(jnp.cos(now), 0.05), -1, 1)
        return jnp.cos(after) * clean + jnp.sin(after) * noise

    return jax.lax.fori_loop(0, steps, back, jax.random.normal(key, (count, 64)))


def train(model, steps=600):
    state, losses, like = start(model), [], start(make(jax.random.key(9)))
    with tempfile.TemporaryDirectory() as folder:
        for i, (images, _) in enumerate(batches(digits(), 64, steps)):
            state, value = step(state, images)
            losses.append(float(value))
            if i == steps // 2:
                eqx.tree_serialise_leaves(Path(folder) / "state.eqx", state)
                state = eqx.tree_deserialise_leaves(Path(folder) / "state.eqx", like)
    samples = sample(state.average, jax.random.key(2))
    print(f"loss {losses[-1]:.3f} after step {state.time}, ink of the samples {0.5 + samples.mean() / 2:.3f}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
