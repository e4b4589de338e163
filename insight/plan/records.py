"""Converts trees of records to inputs of a step, with roles and shardings by rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import jax.numpy as jnp
from weft.core.paths import format_path
from weft.core.records.kinds import Param
from weft.core.records.leaves import Leaf, iter_leaves
from weft.core.records.partition import with_leaves
from weft.insight.plan.arguments import Argument, Inputs, shape_on, whole_or_divided
from weft.modules.learning.optimizer import Optimizer
from weft.modules.sharding.placing import shard


def inputs_of_trees(trees: dict[int, Any], mesh: Any, rules: Any, batch_axes: Any, naming: dict[str, Any]) -> Inputs:
    """Returns the inputs for the arguments of a step that are no NNX objects: records, batches and other trees."""
    shapes = []
    for tree in trees.values():
        leaves = [leaf for leaf in iter_leaves(tree) if leaf.dynamic]
        shape = with_leaves(tree, {leaf.path: shape_on(leaf.value, mesh) for leaf in leaves})
        # A batch has no names of axes, and `shard` refuses rules for names that no array has.
        is_model = rules is not None and any(leaf.owners for leaf in leaves)
        shapes.append(shard(shape, **naming) if is_model else shape)
    numbers = list(trees)
    leaves = [leaf for leaf in iter_leaves(shapes) if leaf.dynamic]
    arguments = []
    for leaf in leaves:
        number, *path = cast("tuple[int, ...]", leaf.path)
        role = _role(leaf, trees[numbers[number]])
        aval = whole_or_divided(leaf.value, mesh, batch_axes if role == "batch" else None)
        arguments.append(Argument(format_path(tuple(path), f"args[{numbers[number]}]"), role, aval))

    def rebuilt(arrays: Sequence[Any]) -> list[Any]:
        return with_leaves(shapes, {leaf.path: array for leaf, array in zip(leaves, arrays, strict=True)})

    return Inputs(arguments, rebuilt, lambda _: [])


def _role(leaf: Leaf, tree: Any) -> str:
    def is_optax(value: Any) -> bool:
        return type(value).__module__.startswith("optax")

    # `optax.chain` has a plain tuple of states as its state.
    is_chain = isinstance(tree, tuple) and any(map(is_optax, tree))
    if any(issubclass(owner, Optimizer) for owner in leaf.owners) or is_optax(tree) or is_chain:
        return "optimizer"
    is_inexact = jnp.issubdtype(leaf.value.dtype, jnp.inexact)
    if leaf.owners:
        return "params" if is_inexact and issubclass(leaf.kind, Param) else "state"
    # A plain dict may be a batch or the parameters of a model that is no record, such as Linen's. Such parameters are
    # in nested dicts, and a batch is one dict of arrays at most.
    return "params" if isinstance(tree, dict) and is_inexact and len(leaf.path) > 2 else "batch"
