"""What a branch or loop costs that is called outside of `jit`, again and again, with its functions written in the call.

Each call makes its lambdas anew. The limit is plain JAX with functions that are made once, which it keeps the trace of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import weft
from flax import nnx
from harness import Case, compare, read_arguments, time_cases
from jax import lax

LIMIT = "jax.lax, functions made once (the limit)"
SIZE = 4


def double(w: jax.Array) -> jax.Array:
    return w * 2


def halve(w: jax.Array) -> jax.Array:
    return w / 2


def is_small(carry: Any) -> Any:
    return carry[1] < 3


def step(carry: Any) -> Any:
    return carry[0] * 0.5, carry[1] + 1


def model(lib: Any) -> Any:
    class Model(lib.Module):
        def __init__(self):
            self.w = lib.Param(jnp.ones(SIZE))

        def scale(self, factor: float) -> None:
            self.w[...] *= factor

    return Model()


def branch(lib: Any) -> Callable[[Any], Any]:
    def advance(m: Any) -> Any:
        lib.cond(True, lambda m: m.scale(2.0), lambda m: m.scale(0.5), m)
        return m

    return advance


def loop(lib: Any) -> Callable[[Any], Any]:
    def body(i: Any, m: Any) -> Any:
        m.scale(0.5)
        return m

    def advance(m: Any) -> Any:
        return lib.fori_loop(0, 3, lambda i, m: body(i, m), m)

    return advance


def build_cases(kind: str, quick: bool) -> list[Case]:
    """One case for each library; flax compiles at each call, so a few calls tell."""
    start, few = jnp.ones(SIZE), 2
    if kind == "cond":
        cases = [
            Case(LIMIT, lambda w: lax.cond(True, double, halve, w), start),
            Case("weft.cond", lambda w: weft.cond(True, lambda w: w * 2, lambda w: w / 2, w), start),
        ]
    else:
        cases = [
            Case(LIMIT, lambda w: lax.while_loop(is_small, step, (w, 0))[0], start),
            Case("weft.fori_loop", lambda w: weft.fori_loop(0, 3, lambda i, w: w * 0.5, w), start),
        ]
    make = branch if kind == "cond" else loop
    name = "cond" if kind == "cond" else "fori_loop"
    cases.append(Case(f"weft.nnx.{name}", make(weft.nnx), model(weft.nnx), calls=few if quick else None))
    cases.append(Case(f"flax.nnx.{name}", make(nnx), model(nnx), calls=few))
    return cases


def main() -> None:
    arguments = read_arguments(__doc__)
    rounds = arguments.rounds or (2 if arguments.quick else 10)
    for kind in ("cond", "fori_loop"):
        print(f"\n### Outside of jit: {kind}, called again\n")
        print(compare(time_cases(build_cases(kind, arguments.quick), rounds), LIMIT))


if __name__ == "__main__":
    main()
