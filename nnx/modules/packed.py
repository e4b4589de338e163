"""Objects packed: how whole models go into a function of plain `jax.jit` without a walk over their graph.

One that a server passes to each step goes by the plan of its graph. One that a step of training has returned goes into
the next one by the list of Variables that it was made around, as long as no object has changed anywhere: most loops
hand it on at once. It is a tree of real objects then, made at each step. A State is made when somebody looks at it,
which an object cannot be: what it has may also be an attribute of its class, and nobody is told of such a look. So the
objects are made in few steps of C (`assembly`), where JAX would call back for each.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from weft.core.edge import trees
from weft.nnx.graphs.plan import Plan, plan_of
from weft.nnx.modules.assembly import assembly_of
from weft.nnx.variable.packed import MEETINGS, Packing, all_leaves, is_boxed, pack
from weft.nnx.versions import structure_epoch

_store = object.__setattr__
_raw_value = operator.attrgetter("_raw_value")
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


class ReturnedObject:
    """The Variables of an object that a call has just returned, in JAX's order."""

    __slots__ = ("_epoch", "_variables", "packing")

    def __init__(self, variables: Sequence[Any], packing: Packing):
        self._variables, self.packing = variables, packing
        self._epoch = structure_epoch.now

    def read(self) -> Sequence[Any] | None:
        """The leaves, or None if the structure of any object has changed since."""
        if self._epoch != structure_epoch.now:
            return None
        values = [*map(_raw_value, self._variables)]
        return values if all_leaves(values) else None


def pack_object(node: Any) -> tuple[Sequence[Any], Packing]:
    """An object's leaves in JAX's order, and its `Packing`."""
    plans = node._pytree__plans
    known = None if plans is None else plans.get(_PACKED)
    if isinstance(known, PackedObject | ReturnedObject):
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


def unpack_object(packing: Packing, leaves: Sequence[Any]) -> Any:
    """The object of a packing, with these leaves."""
    if not packing.boxes:
        return packing.unpack(leaves)
    variables = packing.boxed(leaves)
    node = (packing.assembly or packing).around(variables)
    if packing.by_versions is None:
        # At the first that comes back; most makes that come back once do so at each step.
        packing.by_versions = Plan((node,)).by_versions
        packing.assembly = assembly_of(node)
    if packing.by_versions:
        _store(node, "_pytree__plans", {_PACKED: ReturnedObject(variables, packing)})
    return node
