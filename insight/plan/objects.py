"""Steps over NNX objects: their Variables' arrays as arguments, by the Variables' types and sharding metadata."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
from weft.core.paths import format_path
from weft.core.sowing.tags import take_arrays
from weft.insight.plan.tracing import Argument, on_mesh


def has_objects(args: tuple[Any, ...]) -> bool:
    """Whether any argument is an NNX object. A program that has some has loaded `weft.nnx`."""
    nnx = sys.modules.get("weft.nnx")
    return nnx is not None and any(isinstance(arg, nnx.Pytree) for arg in args)


def objects_taken_apart(
    step: Callable[..., Any], args: tuple[Any, ...], mesh: Any, rules: Any, batch: Any
) -> tuple[list[Argument], Callable[..., Any]]:
    """The arrays of a step's arguments, and the step as a function of them that gives what it returns and changes."""
    nnx: Any = sys.modules["weft.nnx"]
    is_object = [isinstance(arg, nnx.Pytree) for arg in args]
    graphdef, state = nnx.split([arg for arg, ours in zip(args, is_object, strict=True) if ours], graph=True)
    names = [i for i, ours in enumerate(is_object) if ours]
    rest = [arg for arg, ours in zip(args, is_object, strict=True) if not ours]
    arguments: list[Argument] = []
    with nnx.logical_axis_rules(list(rules.items()) if isinstance(rules, dict) else rules or ()):
        places = jax.tree.leaves(nnx.get_named_sharding(state, mesh))
    by_path = nnx.to_flat_state(state)
    paths = [(path, variable) for path, variable in by_path for _ in jax.tree.leaves(variable)]
    leaves, tree = jax.tree.flatten(state)
    for (path, variable), leaf, place in zip(paths, leaves, places, strict=True):
        optimizer = (
            issubclass(variable.type, nnx.OptState | nnx.training.optimizer.OptVariable)
            if False
            else (isinstance(args[names[path[0]]], nnx.Optimizer))
        )
        role = "optimizer" if optimizer else "params" if issubclass(variable.type, nnx.Param) else "state"
        sharding = getattr(place, "sharding", place)
        shape = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        arguments.append(Argument(format_path(path[1:], f"args[{names[path[0]]}]"), role, on_mesh(shape, mesh)))
    given, skeleton = take_arrays(rest)
    for leaf in given:
        shape = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))
        is_placed = isinstance(shape.sharding, jax.sharding.NamedSharding)
        arguments.append(
            Argument(
                "batch",
                "batch",
                shape if is_placed else on_mesh(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), mesh, batch),
            )
        )

    def run(*arrays: Any) -> Any:
        objects = nnx.merge(graphdef, jax.tree.unflatten(tree, arrays[: len(leaves)]))
        plain, live = iter(skeleton.fill(arrays[len(leaves) :])), iter(objects)
        out = step(*(next(live) if ours else next(plain) for ours in is_object))
        return [*take_arrays(out)[0], *jax.tree.leaves(nnx.split(objects, graph=True)[1])]

    return arguments, run
