"""Packed objects: how models go into compiled calls of plain `jax.jit` without a walk over their graph.

A server passes the same model to each call: its leaves are read by the model's plan. A training loop passes the model
that the last step has returned: its leaves are read from the list of Variables that it was built around, as long as no
structure in the process has changed since; most loops pass it on at once.

A returned `State` is built lazily, when it is first read (see `nnx/states/packed.py`). An object cannot be: Python may
find a missing attribute on its class instead, without a call to us. So returned objects are built at once, by a few
loops in C (`assembly`) instead of a call back from JAX for each.
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
_PACKED = "packed"  # a key of `_pytree__plans` that no plan has: those have tuples


class PackedObject:
    """The plan of an object, and for each of JAX's leaves its position in the plan (-1 if the plan lacks it)."""

    __slots__ = ("_in_order", "_order", "packing", "plan")

    def __init__(self, plan: Plan, node: Any, packing: Packing):
        self.plan, self.packing = plan, packing
        places = {id(leaf): place for place, leaf in enumerate(plan.leaves)}
        self._order = [places.get(id(leaf), -1) for leaf in trees.flatten(node, is_boxed)[0]]
        # The plan sorts attributes as JAX does, so the orders usually agree and no list is rebuilt in a call.
        self._in_order = self._order == list(range(len(plan.leaves)))

    def read(self) -> Sequence[Any] | None:
        """Returns the leaves in JAX's order, or None if the plan is outdated."""
        if not self.plan.is_valid():
            return None
        values = self.plan.read()
        # A container as the value of a Variable has leaves of its own, for which the compiled call has no places.
        if not all_leaves(values):
            return None
        return values if self._in_order else [values[place] for place in self._order]

    def is_complete(self) -> bool:
        """Whether the plan has all leaves that JAX sees. A list in an attribute, say, has leaves of its own for JAX."""
        return not self.plan.volatile and -1 not in self._order


class ReturnedObject:
    """The Variables of an object that a call has returned, in JAX's order."""

    __slots__ = ("_epoch", "_variables", "packing")

    def __init__(self, variables: Sequence[Any], packing: Packing):
        self._variables, self.packing = variables, packing
        self._epoch = structure_epoch.now

    def read(self) -> Sequence[Any] | None:
        """Returns the leaves, or None if any structure in the process has changed since."""
        # There is no plan that could say which object has changed, so any structural change in the process ends this.
        if self._epoch != structure_epoch.now:
            return None
        values = [*map(_raw_value, self._variables)]
        return values if all_leaves(values) else None


def pack_object(node: Any) -> tuple[Sequence[Any], Packing]:
    """Returns an object's leaves in JAX's order, and its `Packing`."""
    plans = node._pytree__plans
    known = None if plans is None else plans.get(_PACKED)
    if isinstance(known, PackedObject | ReturnedObject):
        leaves = known.read()
        if leaves is not None:
            return leaves, known.packing
        known = None
    leaves, packing = pack(node)
    # No plan before the third call with the same object: a model that each call returns is a new object each time.
    count = 1 if known is None else known + 1
    if count <= MEETINGS:
        packed = PackedObject(plan_of((node,)), node, packing) if count == MEETINGS else None
        plans = node._pytree__plans
        if plans is None:
            plans = {}
            _store(node, "_pytree__plans", plans)
        plans[_PACKED] = packed if packed is not None and packed.is_complete() else count
    return leaves, packing


def unpack_object(packing: Packing, leaves: Sequence[Any]) -> Any:
    """Rebuilds the object of a packing around leaves."""
    if not packing.boxes:
        return packing.unpack(leaves)
    variables = packing.boxed(leaves)
    node = (packing.assembly or packing).around(variables)
    if packing.by_versions is None:
        # Analysed at the first return: a structure that is returned once is usually returned at every step.
        packing.by_versions = Plan((node,)).by_versions
        packing.assembly = assembly_of(node)
    if packing.by_versions:
        _store(node, "_pytree__plans", {_PACKED: ReturnedObject(variables, packing)})
    return node
