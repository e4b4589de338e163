"""What a call of a compiled function costs: many small leaves in, the same ones out, next to no work inside.

A model of BLOCKS blocks, each of three objects with two leaves, is stepped by a jitted function, and its successor is
fed back. The limit is plain `jax.jit` over a flat tuple of the same leaves. In the second table of each size only one
leaf in six changes; the limit still returns them all, as one must who carries a flat tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import weft
from flax import nnx
from harness import Case, compare, read_arguments, time_cases

LIMIT = "jax.jit, flat tuple (the limit)"


def array() -> jax.Array:
    return jnp.zeros((4,))


class EqxPart(eqx.Module):
    scale: jax.Array
    bias: jax.Array


class EqxBlock(eqx.Module):
    scale: jax.Array
    bias: jax.Array
    left: EqxPart
    right: EqxPart


class EqxModel(eqx.Module):
    blocks: tuple[EqxBlock, ...]


def eqx_model(blocks: int) -> EqxModel:
    def part() -> EqxPart:
        return EqxPart(array(), array())

    return EqxModel(tuple(EqxBlock(array(), array(), part(), part()) for _ in range(blocks)))


class Part(weft.Module):
    scale: jax.Array
    bias: jax.Array


class Block(weft.Module):
    scale: jax.Array
    bias: jax.Array
    left: Part
    right: Part


class Model(weft.Module):
    blocks: tuple[Block, ...]


def record(blocks: int) -> Model:
    def part() -> Part:
        return Part(array(), array())

    return Model(tuple(Block(array(), array(), part(), part()) for _ in range(blocks)))


def nnx_model(lib: Any, blocks: int) -> Any:
    """The same model in flax.nnx, or in whatever offers its interface."""

    class NnxPart(lib.Module):
        def __init__(self):
            self.scale = lib.Param(array())
            self.bias = lib.Param(array())

    class NnxBlock(lib.Module):
        def __init__(self):
            self.scale = lib.Param(array())
            self.bias = lib.Param(array())
            self.left = NnxPart()
            self.right = NnxPart()

    class NnxModel(lib.Module):
        def __init__(self):
            self.blocks = lib.List([NnxBlock() for _ in range(blocks)])

    return NnxModel()


def step_all(tree: Any) -> Any:
    return jax.tree.map(lambda x: x + 1, tree)


def step_sixth(tree: Any) -> Any:
    leaves, treedef = jax.tree.flatten(tree)
    return jax.tree.unflatten(treedef, [x + 1 if i % 6 == 0 else x for i, x in enumerate(leaves)])


def mutate_all(model: Any) -> None:
    for block in model.blocks:
        for part in (block, block.left, block.right):
            part.scale[...] += 1
            part.bias[...] += 1


def mutate_sixth(model: Any) -> None:
    for block in model.blocks:
        block.bias[...] += 1


def flat_changed(leaves: tuple[jax.Array, ...]) -> tuple[Callable[[Any], Any], Any]:
    """Every leaf in, one in six out, put back in its place by hand: what masking the outputs could save at best."""
    step = jax.jit(lambda leaves: tuple(x + 1 for x in leaves[::6]))

    def advance(leaves: list[jax.Array]) -> list[jax.Array]:
        after = leaves.copy()
        after[::6] = step(leaves)
        return after

    return advance, list(leaves)


def in_place(function: Callable[[Any], None]) -> Callable[[Any], Any]:
    def advance(model: Any) -> Any:
        function(model)
        return model

    return advance


def build_cases(blocks: int, everything: bool) -> list[Case]:
    """One case for each way to carry a model of so many blocks through a jitted step."""
    step, mutate = (step_all, mutate_all) if everything else (step_sixth, mutate_sixth)
    leaves = tuple(array() for _ in range(6 * blocks))
    cases = [
        Case(LIMIT, jax.jit(step), leaves),
        Case("weft.jit, record in and successor out", weft.jit(step), record(blocks)),
        Case("jax.jit over weft records", jax.jit(step), record(blocks)),
        Case("jax.jit over equinox modules", jax.jit(step), eqx_model(blocks)),
        Case("eqx.filter_jit", eqx.filter_jit(step), eqx_model(blocks)),
    ]
    if not everything:
        cases.insert(1, Case("jax.jit, flat tuple, changed leaves out only", *flat_changed(leaves)))
    for name, lib in (("flax.nnx.jit", nnx), ("weft.nnx.jit", weft.nnx)):
        # weft.nnx joins the table once it has transforms.
        if hasattr(lib, "jit"):
            cases.append(Case(f"{name}, default graph mode", in_place(lib.jit(mutate)), nnx_model(lib, blocks)))
            tree = lib.jit(mutate, graph=False)
            cases.append(Case(f"{name}, tree mode", in_place(tree), nnx_model(lib, blocks)))
    return cases


def main() -> None:
    arguments = read_arguments(__doc__)
    rounds = arguments.rounds or (3 if arguments.quick else 40)
    for blocks in (2,) if arguments.quick else (100, 20):
        for everything in (True, False):
            changed = "all leaves changed" if everything else "one leaf in six changed"
            print(f"\n### Dispatch: {6 * blocks} leaves in {3 * blocks + 1} objects, {changed}\n")
            print(compare(time_cases(build_cases(blocks, everything), rounds), LIMIT))


if __name__ == "__main__":
    main()
