"""Packed objects: how models go into compiled calls of plain `jax.jit` without a walk over their graph.

A server passes the same model to each call: its leaves are read by the model's plan. A training loop passes the model
that the last step has returned: its leaves are read from the list of Variables that it was built around, as long as no
structure in the process has changed since; most loops pass it on at once.

A returned `State` is built lazily, when it is first read (see `nnx/states/packed.py`). An object cannot be: Python may
find a missing attribute on its class instead, without a call to us. So returned objects are built at once. JAX
unflattens them one by one, each with a call back into Python, and for a model of hundreds of objects that may take as
long as a training step. The structure is the same at each step, so an `ObjectRebuilder` analyses it once, and then
builds by column: all objects, then each slot of all objects, then the attributes of all objects with the same attribute
names.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from weft.core.edge import trees
from weft.core.interpreter.codegen import Source
from weft.nnx.graphs.plan import Plan, is_object, plan_of
from weft.nnx.objects.layout import Layout, layout_of
from weft.nnx.objects.objects import attributes_of, new_objects, picker, set_attributes
from weft.nnx.variable.packed import MEETINGS, Packing, all_leaves, is_boxed, pack
from weft.nnx.versions import structure_epoch

# With fewer objects, JAX's own unflattening is as fast.
_FEWEST = 8


class OnlyJaxRebuilds(Exception):
    """Raised for a tree that only JAX can rebuild: it contains a container that is no NNX object."""


# A function from the pool to the attribute dicts of a group of objects.
_Make = Callable[[Sequence[Any]], Iterable[dict[str, Any]]]


class _SameAttributes:
    """Objects with the same attribute names: their positions, and the positions of their values in the pool."""

    def __init__(self, layout: Layout):
        self.names = (*layout.data_names, *layout.static_names)
        self.objects: list[int] = []
        self.rows: list[list[int]] = []

    def finished(self) -> tuple[_Make, Callable[[Any], Any]]:
        """Returns a function that makes the attribute dicts, and one that selects the objects."""
        names, members = self.names, picker(self.objects)
        if len(self.rows) <= len(names):
            # A few objects with many attributes each, such as a long `List`.
            rows = [picker(row) for row in self.rows]
            return lambda pool: [dict(zip(names, row(pool), strict=True)) for row in rows], members
        # Generated code, because a dict display takes a third of the time of `dict(zip(names, values))`.
        source = Source()
        items = ", ".join(f"{name!r}: a{i}" for i, name in enumerate(names))
        source.lines.append(f"return {{{items}}}")
        make = source.function(", ".join(f"a{i}" for i in range(len(names))))
        columns = [picker(column) for column in zip(*self.rows, strict=True)]
        return lambda pool: map(make, *[column(pool) for column in columns]), members


class ObjectRebuilder:
    """Rebuilds all objects of one structure around new Variables.

    Attributes are picked from a *pool*, a flat tuple: None, the Variables in JAX's order, the objects, static values.

    Args:
        root: an object that contains only objects, Variables, None and static values.

    Raises:
        OnlyJaxRebuilds: if it contains anything else.
    """

    __slots__ = ("_alike", "_kinds", "_nodes", "_statics")

    def __init__(self, root: Any):
        self._kinds: list[type] = []
        self._nodes: list[Any] = []
        self._statics: list[Any] = []
        layouts: list[tuple[Layout, list[Any]]] = []
        variables = len(trees.flatten(root, is_boxed)[0])
        self._add(root, itertools.count(1), variables + 1, layouts)
        # Grouped by attribute names: one generated function makes the dicts of all objects of a group.
        alike: dict[tuple[str, ...], _SameAttributes] = {}
        for i, (layout, places) in enumerate(layouts):
            group = alike.setdefault((*layout.data_names, "", *layout.static_names), _SameAttributes(layout))
            group.objects.append(i)
            # Static values have negative numbers until here: they come after the objects, whose count is known now.
            group.rows.append([place if place >= 0 else variables + len(layouts) - place for place in places])
        self._alike = [group.finished() for group in alike.values() if group.names]

    def _add(self, value: Any, variables: Iterator[int], first: int, layouts: list[tuple[Layout, list[Any]]]) -> int:
        """Adds a value and everything below it. Returns the value's position in the pool."""
        # Place 0 of the pool is None. JAX has no leaf for it, so it takes no Variable.
        if value is None:
            return 0
        if is_boxed(value):
            return next(variables)
        if not (is_object(value) and value._pytree__is_pytree):
            raise OnlyJaxRebuilds
        values = attributes_of(value)
        layout = layout_of(value._pytree__nodes, values, value._pytree__has_int_keys)
        places = [self._add(values[name], variables, first, layouts) for name in layout.data_names]
        for name in layout.static_names:
            self._statics.append(values[name])
            places.append(-len(self._statics))
        # Children come before their parent, so the root is the last object.
        self._kinds.append(type(value))
        self._nodes.append(value._pytree__nodes)
        layouts.append((layout, places))
        return first + len(layouts) - 1

    @property
    def pays(self) -> bool:
        """Whether there are enough objects to be faster than JAX."""
        return len(self._kinds) >= _FEWEST

    def around(self, variables: Sequence[Any]) -> Any:
        """Builds the tree of new objects around Variables, and returns its root."""
        objects = new_objects(self._kinds, self._nodes)
        pool = (None, *variables, *objects, *self._statics)
        # Attributes come after all objects exist: the attribute of a parent is its child object in the pool.
        for make, members in self._alike:
            set_attributes(members(objects), make(pool))
        return objects[-1]


def assembly_of(root: Any) -> ObjectRebuilder | None:
    """Makes the assembly for trees of the structure of `root`; None if only JAX can rebuild them, or is as fast."""
    try:
        assembly = ObjectRebuilder(root)
    except (OnlyJaxRebuilds, RecursionError):  # a chain of objects may be deeper than Python's recursion limit
        return None
    return assembly if assembly.pays else None


_store = object.__setattr__
_raw_value = operator.attrgetter("_raw_value")
# A key of `_pytree__plans` that no plan has: those have tuples. Its value is a `PackedObject`, a `ReturnedObject`, or
# the number of calls so far that had the object.
_PACKED = "packed"


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
