"""What `weft.debug.nonfinite` costs a step that finds nothing, beside the same step without it.

`nonfinite(step)` looks at each call before it returns, so its baseline is a plain step whose outputs are waited for as
well; `with nonfinite()` around a loop does not wait.

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


def waiting(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step, waited for at each call."""
    return lambda params, x: jax.block_until_ready(step(params, x))


def seconds(step: Callable[..., Any], params: Any, x: Any, calls: int) -> float:
    """Seconds a call, in a loop that waits at its end."""
    start = time.perf_counter()
    for _ in range(calls):
        value, params = step(params, x)
    jax.block_until_ready((value, params))
    return (time.perf_counter() - start) / calls


def main() -> None:
    """Prints a table: medians of the ratios of interleaved rounds."""
    print("| step | `with nonfinite()` | `nonfinite(step)` | `nonfinite(step)` by a step that is waited for |")
    print("| --- | --- | --- | --- |")
    for width, depth, calls in ((128, 4, 100), (256, 2, 60), (384, 4, 30)):
        step, params, x = step_of(width, depth)
        checked, waited = weft.debug.nonfinite(step), waiting(step)
        rounds: list[list[float]] = []
        for i in range(43):
            plain, slow = seconds(step, params, x, calls), seconds(waited, params, x, calls)
            with weft.debug.nonfinite():
                around = seconds(step, params, x, calls)
            wrapped = seconds(checked, params, x, calls)
            rounds += [[plain * 1e3, around / plain, wrapped / plain, wrapped / slow]] if i > 2 else []
        milliseconds, *ratios = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"| {milliseconds:.2f} ms | " + " | ".join(f"{ratio:.3f}" for ratio in ratios) + " |")


if __name__ == "__main__":
    main()
