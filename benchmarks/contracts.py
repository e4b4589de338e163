"""What contracts cost: while tracing, in a compiled call, and in an eager call of a Linear layer.

Each case is timed with contracts off (the limit) and on. The reach: 1.25x while tracing, nothing in a compiled call,
60 µs more in an eager one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import transformer
import weft
from harness import Case, compare, read_arguments, time_cases
from tracing import lowering
from weft.typecheck import mode

OFF = "contracts off (the limit)"


def both_ways(advance: Callable[[Any], Any], **options: Any) -> list[Case]:
    """The same work with contracts off and on."""

    def under(name: str) -> Callable[[Any], Any]:
        def advance_in_mode(state: Any) -> Any:
            with mode(name):
                return advance(state)

        return advance_in_mode

    return [Case(OFF, under("off"), **options), Case("contracts on", under("on"), **options)]


def tracing_cases(size: transformer.Size) -> list[Case]:
    lower = lowering(weft.jit, weft.value_and_grad, transformer.weft_program(size), transformer.tokens(size))
    return both_ways(lower, calls=1, prepare=jax.clear_caches)


def call_cases(compiled: bool) -> list[Case]:
    layer = weft.Linear(64, 64, key=jax.random.key(0))
    step = weft.jit(lambda layer, x: layer(x)) if compiled else lambda layer, x: layer(x)
    return both_ways(lambda x: step(layer, x), start=jnp.ones((8, 64)))


def main() -> None:
    arguments = read_arguments(__doc__)
    size = transformer.Size(layers=1) if arguments.quick else transformer.Size()
    rounds = arguments.rounds or (1 if arguments.quick else 15)
    print(f"\n### Contracts: trace and lower of `value_and_grad`, {size.layers}-layer transformer\n")
    print(compare(time_cases(tracing_cases(size), rounds), OFF, unit="ms", scale=1e3))
    print("\n### Contracts: a call of a Linear layer under `weft.jit`\n")
    print(compare(time_cases(call_cases(compiled=True), rounds), OFF))
    print("\n### Contracts: an eager call of a Linear layer\n")
    print(compare(time_cases(call_cases(compiled=False), rounds), OFF))


if __name__ == "__main__":
    main()
