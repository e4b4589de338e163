"""What a compiled step holds in memory and asks of the device.

*Donation*: buffers and bytes that are alive around a training step, counted over every array that JAX knows of.
*Program*: the FLOPs and bytes that XLA counts in the optimised HLO of a loss and its gradient, beside hand-written jnp.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import programs
import weft
from harness import read_arguments, table


def live() -> tuple[int, int]:
    """How many arrays are alive, and their bytes."""
    gc.collect()
    arrays = jax.live_arrays()
    return len(arrays), sum(array.nbytes for array in arrays)


class Layer(weft.Module):
    weight: jax.Array
    bias: jax.Array


class Network(weft.Module):
    layers: tuple[Layer, ...]


def network(width: int) -> Network:
    return Network(tuple(Layer(jnp.zeros((width, width)), jnp.zeros(width)) for _ in range(8)))


def train_step(model: Network, x: jax.Array) -> Network:
    def loss(model: Network, x: jax.Array) -> jax.Array:
        for layer in model.layers:
            x = jnp.tanh(x @ layer.weight + layer.bias)
        return jnp.square(x - 1).mean()

    gradient = weft.grad(loss)(model, x)
    return jax.tree.map(lambda value, slope: value - 0.1 * slope, model, gradient)


def live_around_a_step(width: int, donate: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """What is alive before a step and after it, while the caller still holds the model that it passed in."""
    step = weft.jit(train_step, donate_argnums=(0,) if donate else ())
    x = jnp.ones((4, width))
    warm = network(width)
    step(warm, x)
    del warm
    model = network(width)
    base = live()
    after = step(model, x)
    jax.block_until_ready(after)
    return base, live()


def donation_table(width: int) -> str:
    rows: list[tuple[object, ...]] = []
    for name, donate in (("donated", True), ("not donated", False)):
        (count, size), (count_after, size_after) = live_around_a_step(width, donate)
        rows.append((name, count, count_after, f"{size_after / size:.2f}"))
    return table(("the model is", "arrays before", "arrays after", "bytes after, by those before"), rows)


def cost(jit: Callable[..., Any], function: Callable[..., Any], *arguments: Any) -> tuple[float, float]:
    """FLOPs and bytes accessed in the optimised program, as XLA counts them."""
    analysis = jit(function).lower(*arguments).compile().cost_analysis()
    return analysis["flops"], analysis["bytes accessed"]


def program_table() -> str:
    rows: list[tuple[object, ...]] = []
    for name, by_hand, records in programs.PAIRS:
        flops, size = cost(jax.jit, *by_hand())
        weft_flops, weft_size = cost(weft.jit, *records())
        rows.append((f"{name}, jnp by hand", f"{flops:,.0f}", f"{size:,.0f}", ""))
        ratio = f"{weft_flops / flops:.3f} / {weft_size / size:.3f}"
        rows.append((f"{name}, weft", f"{weft_flops:,.0f}", f"{weft_size:,.0f}", ratio))
    return table(("loss and gradient of", "FLOPs", "bytes", "ratio"), rows)


def main() -> None:
    arguments = read_arguments(__doc__)
    print("\n### Memory: what is alive around a training step\n")
    print(donation_table(16 if arguments.quick else 256))
    print("\n### Memory: the optimised program\n")
    print(program_table())


if __name__ == "__main__":
    main()
