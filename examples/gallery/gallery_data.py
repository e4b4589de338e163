"""The data of the gallery's programs, the same for every library: digits, text, sequences, a cart with a pole."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pydoc_data import topics
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from sklearn.datasets import load_digits


@functools.cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's 1,797 handwritten digits: images (n, 8, 8) in [0, 1], and labels."""
    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype(np.float32).reshape(-1, 8, 8), labels.astype(np.int32)


@functools.cache
def text() -> np.ndarray:
    """A text that comes with Python (its own manual), as numbers under 128."""
    joined = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    return np.array([ord(c) for c in joined if ord(c) < 128], np.int32)


def batches(arrays, size: int, steps: int, seed: int = 0) -> Iterator[tuple[np.ndarray, ...]]:
    """So many random batches of rows."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        rows = rng.integers(0, len(arrays[0]), size)
        yield tuple(array[rows] for array in arrays)


def windows(length: int, size: int, steps: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Random windows of the text, (size, length + 1)."""
    rng, characters = np.random.default_rng(seed), text()
    for _ in range(steps):
        starts = rng.integers(0, len(characters) - length - 1, size)
        yield np.stack([characters[start : start + length + 1] for start in starts])


def reversals(length: int, vocab: int, size: int, steps: int, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Random sequences of 1 to vocab - 1, and the same backwards; 0 is left for "start"."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        source = rng.integers(1, vocab, (size, length), dtype=np.int32)
        yield source, source[:, ::-1]


class Cart(NamedTuple):
    """A cart with a pole on it: position, speed, angle, angular speed."""

    state: Float[Array, "4"]
    time: Int[Array, ""]


def reset(key: Key[Array, ""]) -> Cart:
    """A cart near the middle with its pole nearly upright."""
    return Cart(jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05), jnp.int32(0))


def act(cart: Cart, action: Int[Array, ""]) -> tuple[Cart, Float[Array, ""], Bool[Array, ""]]:
    """Pushes the cart left (0) or right (1): the next cart, the reward, and whether it ended (by a fall or 200 steps).

    Source: Barto, Sutton and Anderson, "Neuronlike adaptive elements", 1983; constants as in OpenAI Gym's CartPole-v0.
    """
    _, speed, angle, turning = cart.state
    force = jnp.where(action == 1, 10.0, -10.0)
    push = (force + 0.05 * turning**2 * jnp.sin(angle)) / 1.1
    turn = (9.8 * jnp.sin(angle) - jnp.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * jnp.cos(angle) ** 2 / 1.1))
    slide = push - 0.05 * turn * jnp.cos(angle) / 1.1
    state = cart.state + 0.02 * jnp.stack([speed, slide, turning, turn])
    time = cart.time + 1
    done = (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 0.2095) | (time >= 200)
    return Cart(state, time), jnp.float32(1.0), done
