"""Pairs of programs that do the same: once in jnp by hand, once with weft's layers and its `value_and_grad`.

Each entry of `PAIRS` is a name and two functions; each gives a function to compile and its arguments.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import weft
from jax import lax
from weft.modules.convolutions.conv import Conv
from weft.modules.dense.linear import Linear
from weft.modules.norms.norm import BatchNorm

WIDTH, CLASSES, BATCH, SIDE, MOMENTUM, EPSILON = 128, 10, 32, 8, 0.99, 1e-5


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean negative log-likelihood of the labels."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1).mean()


def labels() -> jax.Array:
    return jnp.zeros(BATCH, jnp.int32)


# An MLP of three layers.


def mlp_by_hand() -> tuple[Any, ...]:
    sizes = [(WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, CLASSES)]
    params = [(jnp.zeros(size), jnp.zeros(size[1])) for size in sizes]

    def loss(params: list[tuple[jax.Array, jax.Array]], x: jax.Array, y: jax.Array) -> jax.Array:
        *hidden, (w, b) = params
        for weight, bias in hidden:
            x = jax.nn.relu(x @ weight + bias)
        return cross_entropy(x @ w + b, y)

    return jax.value_and_grad(loss), params, jnp.zeros((BATCH, WIDTH)), labels()


class Mlp(weft.Module):
    hidden: tuple[Linear, ...]
    out: Linear

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.hidden:
            x = jax.nn.relu(layer(x))
        return self.out(x)


def mlp() -> tuple[Any, ...]:
    key = jax.random.key(0)
    hidden = tuple(Linear(WIDTH, WIDTH, key=key) for _ in range(2))
    model = Mlp(hidden, Linear(WIDTH, CLASSES, key=key))

    def loss(model: Mlp, x: jax.Array, y: jax.Array) -> jax.Array:
        return cross_entropy(model(x), y)

    return weft.value_and_grad(loss), model, jnp.zeros((BATCH, WIDTH)), labels()


# A ConvNet of two convolutions, each with BatchNorm, whose running statistics come out beside the gradient.


def convnet_by_hand() -> tuple[Any, ...]:
    def block(inputs: int, outputs: int) -> dict[str, jax.Array]:
        kernel = jnp.zeros((3, 3, inputs, outputs))
        return {"kernel": kernel, "bias": jnp.zeros(outputs), "scale": jnp.ones(outputs), "shift": jnp.zeros(outputs)}

    params = {"blocks": [block(1, 16), block(16, 32)], "w": jnp.zeros((32, CLASSES)), "b": jnp.zeros(CLASSES)}
    state = [(jnp.zeros(16), jnp.ones(16)), (jnp.zeros(32), jnp.ones(32))]

    def loss(params: Any, state: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Any]:
        after: list[tuple[jax.Array, jax.Array]] = []
        for p, (running_mean, running_var) in zip(params["blocks"], state, strict=True):
            x = lax.conv_general_dilated(x, p["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = x + p["bias"]
            mean = x.mean((0, 1, 2))
            var = jnp.maximum(0.0, jnp.square(x).mean((0, 1, 2)) - jnp.square(mean))
            x = (x - mean) * (lax.rsqrt(var + EPSILON) * p["scale"]) + p["shift"]
            x = jax.nn.relu(x)
            new_mean = MOMENTUM * running_mean + (1 - MOMENTUM) * mean
            after.append((new_mean, MOMENTUM * running_var + (1 - MOMENTUM) * var))
        return cross_entropy(x.mean((1, 2)) @ params["w"] + params["b"], y), after

    return jax.value_and_grad(loss, has_aux=True), params, state, images(), labels()


def images() -> jax.Array:
    return jnp.zeros((BATCH, SIDE, SIDE, 1))


class ConvNet(weft.Module):
    first: Conv
    first_norm: BatchNorm
    second: Conv
    second_norm: BatchNorm
    out: Linear

    def __call__(self, x: jax.Array) -> tuple[jax.Array, ConvNet]:
        with weft.thread(self) as t:
            x = jax.nn.relu(t.first_norm(t.first(x)))
            x = jax.nn.relu(t.second_norm(t.second(x)))
            return t.done(t.out(x.mean((1, 2))))


def convnet() -> tuple[Any, ...]:
    key = jax.random.key(0)
    first, second = Conv(1, 16, (3, 3), key=key), Conv(16, 32, (3, 3), key=key)
    model = ConvNet(first, BatchNorm(16), second, BatchNorm(32), Linear(32, CLASSES, key=key))

    def loss(model: ConvNet, x: jax.Array, y: jax.Array) -> tuple[jax.Array, ConvNet]:
        logits, model = model(x)
        return cross_entropy(logits, y), model

    return weft.value_and_grad(loss, has_aux=True), model, images(), labels()


PAIRS = (("an MLP", mlp_by_hand, mlp), ("a ConvNet with BatchNorm", convnet_by_hand, convnet))
