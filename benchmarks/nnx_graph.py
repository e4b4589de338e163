"""How many times faster graph functions are than flax.nnx's, on 600 Variables in 301 objects.

    python benchmarks/nnx_graph.py

Each row is the best of several repeats for either library, in one process, alternating; `once` is the first call on a
graph whose structure was never planned, the others are calls while nothing structural changed.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx as flax_nnx
from weft import nnx as weft_nnx
from weft.nnx.graphs.plan import plan_of


def make_model(nnx: Any, layers: int = 300) -> Any:
    class Layer(nnx.Module):
        def __init__(self) -> None:
            self.kernel = nnx.Param(jnp.ones((2, 2)))
            self.bias = nnx.Param(jnp.ones(2))
            self.size, self.activation = 2, jax.nn.relu

    class Model(nnx.Module):
        def __init__(self) -> None:
            for i in range(layers):
                setattr(self, f"layer{i}", Layer())

    return Model()


def cases(nnx: Any, model: Any) -> dict[str, Callable[[], Any]]:
    graphdef, state = nnx.split(model)
    doubled = jax.tree.map(lambda x: x * 2, state)

    def changed_then_split() -> Any:
        model.layer0.size += 1
        return nnx.split(model)

    return {
        "split": lambda: nnx.split(model),
        "split, structure changed": changed_then_split,
        "split(Param, ...)": lambda: nnx.split(model, nnx.Param, ...),
        "merge": lambda: nnx.merge(graphdef, state),
        "split + merge": lambda: nnx.merge(*nnx.split(model)),
        "state": lambda: nnx.state(model),
        "state(Param)": lambda: nnx.state(model, nnx.Param),
        "update": lambda: nnx.update(model, doubled),
        "clone": lambda: nnx.clone(model),
        "hash(graphdef)": lambda: hash(nnx.graphdef(model)),
        "jax.tree.flatten": lambda: jax.tree.flatten(model),
        "make": lambda: make_model(nnx, 20),
    }


def best(functions: tuple[Callable[[], Any], ...], number: int = 5, repeats: int = 5) -> list[float]:
    times = [float("inf")] * len(functions)
    for _ in range(repeats):
        for i, function in enumerate(functions):
            times[i] = min(times[i], timeit.timeit(function, number=number) / number)
    return [time * 1e6 for time in times]


def main() -> None:
    ours, theirs = make_model(weft_nnx), make_model(flax_nnx)
    our_cases, their_cases = cases(weft_nnx, ours), cases(flax_nnx, theirs)
    print(f"{'':28}{'weft, us':>10}{'flax, us':>10}{'ratio':>8}")
    for name in our_cases:
        ours_us, theirs_us = best((our_cases[name], their_cases[name]))
        print(f"{name:28}{ours_us:10.0f}{theirs_us:10.0f}{theirs_us / ours_us:8.1f}")
    plan = plan_of((ours,))
    check, read = best((plan.is_valid, plan.read), number=200)
    print(f"plan: check {check:.1f} us ({check / 301:.3f} us an object), read 600 values {read:.1f} us")


if __name__ == "__main__":
    main()
