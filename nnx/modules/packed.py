"""Objects packed: how whole models go into a function of plain `jax.jit`, by the plan that their graph has anyway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.edge import trees
from weft.nnx.graphs.plan import Plan, plan_of
from weft.nnx.variable.packed import MEETINGS, Packing, all_leaves, is_boxed, pack

_store = object.__setattr__
_PACKED = "packed"  # beside the plans of an object, under a name that none of them has


class PackedObject:
    """A plan, with the place in it of each leaf that JAX sees, in JAX's order; none where it has others."""

    __slots__ = ("_in_order", "_order", "packing", "plan")

    def __init__(self, plan: Plan, node: Any, packing: Packing):
        self.plan, self.packing = plan, packing
        places = {id(leaf): place for place, leaf in enumerate(plan.leaves)}
        self._order = [places.get(id(leaf), -1) for leaf in trees.flatten(node, is_boxed)[0]]
        self._in_order = self._order == list(range(len(plan.leaves)))

    def read(self) -> Sequence[Any] | None:
        """The leaves, or None if something is no longer as it was planned."""
        if not self.plan.is_valid():
            return None
        values = self.plan.read()
        if not all_leaves(values):
            return None
        return values if self._in_order else [values[place] for place in self._order]

    def is_complete(self) -> bool:
        """Whether the plan has all leaves that JAX sees: it is about graphs, where what is shared is there once."""
        return not self.plan.volatile and -1 not in self._order


def pack_object(node: Any) -> tuple[Sequence[Any], Packing]:
    """An object's leaves in JAX's order, and its `Packing`."""
    plans = node._pytree__plans
    known = None if plans is None else plans.get(_PACKED)
    if type(known) is PackedObject:
        leaves = known.read()
        if leaves is not None:
            return leaves, known.packing
        known = None
    leaves, packing = pack(node)
    # What is met once is not planned: a model that each call returns anew is another object each time.
    met = 1 if known is None else known + 1
    if met <= MEETINGS:
        packed = PackedObject(plan_of((node,)), node, packing) if met == MEETINGS else None
        plans = node._pytree__plans
        if plans is None:
            plans = {}
            _store(node, "_pytree__plans", plans)
        plans[_PACKED] = packed if packed is not None and packed.is_complete() else met
    return leaves, packing
