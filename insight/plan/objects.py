"""Steps over NNX objects: their Variables' arrays as arguments, by the Variables' types and sharding metadata."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
from weft.core.paths import format_path
from weft.core.sowing.tags import take_arrays
from weft.insight.plan.arguments import Argument, on_mesh


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
        specs = nnx.get_partition_spec(state)
    places = jax.tree.leaves(specs, is_leaf=lambda one: isinstance(one, PartitionSpec))
    paths = [(path, one) for path, one in nnx.to_flat_state(state) for _ in jax.tree.leaves(one)]
    leaves, tree = jax.tree.flatten(state)
    for (path, variable), leaf, spec in zip(paths, leaves, places, strict=True):
        is_moment = isinstance(args[names[path[0]]], nnx.Optimizer)
        role = "optimizer" if is_moment else "params" if issubclass(variable.type, nnx.Param) else "state"
        shape = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec or PartitionSpec()))
        arguments.append(Argument(format_path(path[1:], f"args[{names[path[0]]}]"), role, shape))
    given, skeleton = take_arrays(rest)
    for leaf in given:
        shape = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))
        is_placed = isinstance(shape.sharding, NamedSharding)
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
