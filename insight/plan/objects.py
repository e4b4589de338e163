"""Converts NNX objects to inputs of a step: roles by Variable types, shardings by metadata.

Imported only for a step that takes NNX objects, because such a program has imported `weft.nnx` already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import jax
from jax.sharding import NamedSharding, PartitionSpec
from weft import nnx
from weft.core.paths import format_path
from weft.insight.plan.arguments import Argument, Inputs, shape_on, whole_or_divided


def inputs_of_objects(objects: dict[int, Any], mesh: Any, rules: Any) -> Inputs:
    """Returns the inputs for the arguments of a step that are NNX objects, by argument number."""
    numbers, graph = list(objects), list(objects.values())
    # Split together, because a model and its optimizer share Variables, which must be one input.
    graphdef, state = nnx.split(graph, graph=True)
    with nnx.logical_axis_rules(list(rules.items()) if isinstance(rules, dict) else rules or ()):
        specs = jax.tree.leaves(nnx.get_partition_spec(state), is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
    leaves, treedef = jax.tree.flatten(state)
    variables = [(path, variable) for path, variable in nnx.to_flat_state(state) for _ in jax.tree.leaves(variable)]
    arguments = []
    for (path, variable), leaf, spec in zip(variables, leaves, specs, strict=True):
        index, *place = cast("tuple[int, ...]", path)
        # Moments are recognised by the optimizer around them, whatever the types of their Variables.
        is_moment = isinstance(graph[index], nnx.Optimizer)
        role = "optimizer" if is_moment else "params" if issubclass(variable.type, nnx.Param) else "state"
        sharding = NamedSharding(mesh, spec) if spec else None
        shape = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding) if sharding else shape_on(leaf, mesh)
        name = format_path(tuple(place), f"args[{numbers[index]}]")
        arguments.append(Argument(name, role, whole_or_divided(shape, mesh, None)))

    def rebuilt(arrays: Sequence[Any]) -> list[Any]:
        return nnx.merge(graphdef, jax.tree.unflatten(treedef, arrays))

    return Inputs(arguments, rebuilt, lambda objects: jax.tree.leaves(nnx.split(objects, graph=True)[1]))
