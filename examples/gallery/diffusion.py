"""A diffusion model of digits: bfloat16 inside, an average of the parameters, saved and resumed."""

import tempfile
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
import weft
from gallery_data import batches, digits

DIM, DECAY = 128, 0.99
policy = weft.Policy(compute=jnp.bfloat16)


def residual(key):
    return weft.Residual(weft.Sequential(weft.LayerNorm(DIM), weft.MLP(DIM, DIM, DIM, activation=weft.silu, key=key)))


class Denoiser(weft.Module):
    inputs: weft.Linear
    time: weft.Linear
    layers: weft.Sequential
    output: weft.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 5)
        self.inputs = weft.Linear(64, DIM, key=keys[0])
        self.time = weft.Linear(32, DIM, key=keys[1])
        self.layers = weft.Sequential(*map(residual, keys[2:4]))
        self.output = weft.Linear(DIM, 64, key=keys[4])

    def __call__(self, x, time):
        return self.output(self.layers(self.inputs(x) + self.time(time)))


class State(NamedTuple):
    model: Denoiser
    average: Denoiser
    opt: weft.Optimizer


def start(model):
    return State(model, model, weft.Optimizer(model, optax.adamw(2e-3)))


def make(key):
    return Denoiser(key)


def waves(t):
    return weft.sinusoidal(100 * t, features=32, max_period=100.0)


def loss(model, images, key):
    x = 2 * images.reshape(-1, 64) - 1
    key1, key2 = jax.random.split(key)
    t, noise = jax.random.uniform(key1, (len(x),)), jax.random.normal(key2, x.shape)
    angle = 0.5 * jnp.pi * t[:, None]
    return jnp.mean((policy(model)(jnp.cos(angle) * x + jnp.sin(angle) * noise, waves(t)) - noise) ** 2)


@weft.jit
def step(state, images):
    key = jax.random.fold_in(jax.random.key(1), state.opt.step)
    value, model, opt = state.opt.minimize(loss, state.model, images, key)
    return State(model, weft.tree.ema(state.average, model, DECAY), opt), value


@weft.jit
def sample(model, key, count=16, steps=20):
    def back(i, x):
        now, after = 0.5 * jnp.pi * (1 - i / (steps + 1)), 0.5 * jnp.pi * (1 - (i + 1) / (steps + 1))
        noise = policy(model)(x, waves(jnp.full(count, now / (0.5 * jnp.pi))))
        clean = jnp.clip((x - jnp.sin(now) * noise) / jnp.maximum(jnp.cos(now), 0.05), -1, 1)
        return jnp.cos(after) * clean + jnp.sin(after) * noise

    return weft.fori_loop(0, steps, back, jax.random.normal(key, (count, 64)))


def train(model, steps=600):
    state, losses, like = start(model), [], start(make(jax.random.key(9)))
    with tempfile.TemporaryDirectory() as folder:
        for i, (images, _) in enumerate(batches(digits(), 64, steps)):
            state, value = step(state, images)
            losses.append(float(value))
            if i == steps // 2:
                weft.save_checkpoint(Path(folder) / "state", state)
                state = weft.load_checkpoint(Path(folder) / "state", like)
    samples = sample(state.average, jax.random.key(2))
    print(f"loss {losses[-1]:.3f} after step {state.opt.step}, ink of the samples {0.5 + samples.mean() / 2:.3f}")
    return losses


if __name__ == "__main__":
    train(make(jax.random.key(0)))
