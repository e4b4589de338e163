"""What `weft.debug.nonfinite` costs a step that finds nothing, beside the same step without it.

.venv/bin/python benchmarks/debugging.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import weft


def step_of(width: int, depth: int) -> tuple[Any, Any, Any]:
    """A training step of an MLP, its parameters and a batch."""
    params = [jax.random.normal(jax.random.key(i), (width, width)) / width**0.5 for i in range(depth)]

    @weft.jit
    def step(params, x):
        def loss(params):
            y = x
            for w in params:
                y = jnp.tanh(y @ w)
            return (y**2).mean()

        value, gradient = weft.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient)

    return step, params, jnp.ones((64, width))


def seconds(step: Callable[..., Any], params: Any, x: Any, calls: int) -> float:
    """Seconds a call, in a loop that waits at its end."""
    start = time.perf_counter()
    for _ in range(calls):
        value, params = step(params, x)
    jax.block_until_ready((value, params))
    return (time.perf_counter() - start) / calls


def main() -> None:
    """Prints a table: the median of interleaved rounds."""
    print("| step | plain | `with nonfinite()` | `nonfinite(step)` |\n| --- | --- | --- | --- |")
    for width, depth, calls in ((128, 4, 100), (384, 4, 30)):
        step, params, x = step_of(width, depth)
        checked = weft.debug.nonfinite(step)
        rounds: list[list[float]] = []
        for i in range(23):
            plain = seconds(step, params, x, calls)
            with weft.debug.nonfinite():
                around = seconds(step, params, x, calls)
            rounds += [[plain, around, seconds(checked, params, x, calls)]] if i > 2 else []
        plain, *others = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"| {plain * 1e3:.2f} ms | 1 | " + " | ".join(f"{other / plain:.3f}" for other in others) + " |")


if __name__ == "__main__":
    main()
