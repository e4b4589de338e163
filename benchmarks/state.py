"""What it costs to pass a model's state to plain `jax.jit`, as servers do, and to the functions of `jax.tree`.

A model of layers, each with a kernel and a bias, is split once; its state, or the whole model as a pytree, then goes
through compiled calls and tree functions. The limit is a flat tuple of the same arrays, which does not say where they
belong; the nested dict of bare arrays has their paths, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import weft
from flax import nnx
from harness import Case, compare, read_arguments, time_cases

LIMIT = "flat tuple (the limit)"


def model(lib: Any, variables: int) -> Any:
    """A model of so many Variables, half as many layers, in flax.nnx or in what offers its interface."""

    class Layer(lib.Module):
        def __init__(self):
            self.kernel = lib.Param(jnp.zeros((2, 2)))
            self.bias = lib.Param(jnp.zeros(2))

    class Model(lib.Module):
        def __init__(self):
            self.layers = lib.List([Layer() for _ in range(variables // 2)])

    return Model()


def trees(variables: int) -> dict[str, Any]:
    ours, theirs = model(weft.nnx, variables), model(nnx, variables)
    state = weft.nnx.state(ours)
    return {
        LIMIT: tuple(jax.tree.leaves(state)),
        "nested dict of arrays": weft.nnx.to_pure_dict(state),
        "weft.nnx.State": state,
        "flax.nnx.State": nnx.state(theirs),
        "weft.nnx, whole model": ours,
        "flax.nnx, whole model": theirs,
    }


def read(tree: Any) -> Any:
    return jax.tree.leaves(tree)[0] + 1


def step(tree: Any) -> Any:
    return jax.tree.map(lambda x: x + 1, tree)


def served(function: Callable[[Any], Any]) -> Callable[[Any], tuple[Callable[[Any], Any], Any]]:
    """Calls with the same tree each time, as with parameters that are served; what comes out is let go of."""
    return lambda tree: (lambda _: function(tree), None)


def carried(function: Callable[[Any], Any]) -> Callable[[Any], tuple[Callable[[Any], Any], Any]]:
    """Calls with what the last one returned, as in training."""
    return lambda tree: (function, tree)


OPERATIONS = {
    "One call of `jax.jit`, state in": lambda: served(jax.jit(read)),
    "One call of `jax.jit`, state in and out": lambda: carried(jax.jit(step)),
    "`jax.tree.leaves`": lambda: served(jax.tree.leaves),
    "`jax.tree.map` of the identity": lambda: served(lambda tree: jax.tree.map(lambda x: x, tree)),
    "`jax.device_put`": lambda: served(jax.device_put),
}


def main() -> None:
    arguments = read_arguments(__doc__)
    rounds = arguments.rounds or (3 if arguments.quick else 20)
    for variables in (6,) if arguments.quick else (6, 600, 6000):
        for title, operation in OPERATIONS.items():
            cases = [Case(name, *operation()(tree)) for name, tree in trees(variables).items()]
            print(f"\n### {title}: {variables} Variables\n")
            print(compare(time_cases(cases, rounds), LIMIT))


if __name__ == "__main__":
    main()
