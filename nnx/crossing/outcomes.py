"""Outcomes: what a function over graphs returned and did, and how that is put into effect outside of the trace.

An outcome holds no array, no object and no tracer: it rides out in a tree definition, and JAX keeps it with the trace
that it belongs to, for as many calls as there will be, on whatever objects these are of. So everything in it is said in
numbers: leaf 3 of the arguments has its new value in lane 1, place 0; the output's second object is number 5 of the
arguments. Outside, the plan of the caller's own objects turns numbers into objects again.

Putting it into effect has an order that must not be changed:

1. what may be refused is checked (may these Variables be written from here?);
2. everything that can fail is computed, above all what has to be moved to a sharding;
3. only then is anything written: structure, values and metadata, all of it or nothing (see `writes`);
4. the output is built last, because it may refer to objects that the arguments have only now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from weft.core.interpreter.boundary import Groups, Place
from weft.core.interpreter.building import FORWARDED, as_array
from weft.core.interpreter.rides import Ride
from weft.nnx.crossing.apart import put_together, take_apart
from weft.nnx.graphs.definitions import GraphDef, IndexMap
from weft.nnx.graphs.plan import Plan
from weft.nnx.graphs.unflattening import Unflattener
from weft.nnx.graphs.writes import completed, write_all
from weft.nnx.variable.variable import VARIABLE_TYPES
from weft.nnx.versions import structure_epoch

_store = object.__setattr__


@dataclass(frozen=True)
class RefOutcome:
    """What a function returned and did, without the arrays.

    Attributes:
        updates: (leaf, lane, place) for each leaf of the arguments that changed, as in `Place`.
        metadata: (leaf, metadata) for each Variable whose metadata changed.
        arguments: the arguments' graphs as they are now, if their structure changed, with sources of their leaves.
        treedef, items: of the output, as in `RefStructure`.
        graphdef: of the output's graphs; it refers to the arguments' by number.
        sources: (lane, place) of each leaf of the output's graphs, then of its arrays; or (FORWARDED, leaf).
        carried: (leaf, lane, place) for each leaf of the arguments that is carried.
        known: the leaves of the arguments that are Variables.
        attributes: the leaves of the arguments that are arrays, as attributes of objects.
        placed: (leaf, sharding) for each Variable that has not changed, of an argument with a sharding.
        graph: whether objects are graphs, or trees.
    """

    updates: tuple[tuple[int, int, int], ...]
    metadata: tuple[tuple[int, Any], ...]
    arguments: tuple[GraphDef[Any], tuple[tuple[int, int], ...]] | None
    treedef: Any
    items: tuple[Any, ...]
    graphdef: GraphDef[Any]
    sources: tuple[tuple[int, int], ...]
    carried: tuple[tuple[int, int, int], ...] = ()
    known: frozenset[int] = frozenset()
    attributes: frozenset[int] = frozenset()
    placed: tuple[tuple[int, Any], ...] = ()
    graph: bool = True

    def __hash__(self) -> int:
        # Hashed at each call, with the tree definition that it rides in: these two are short, and tell most apart.
        return hash((self.updates, self.sources))

    @property
    def updated(self) -> frozenset[int]:
        """The positions of the arguments' leaves that are updated; all of them if their structure changed."""
        # Of a new structure the updates are in its leaves, where they are not told from what is as it was.
        return self.known if self.arguments is not None else frozenset(i for i, _, _ in self.updates)

    @property
    def replaced(self) -> frozenset[int]:
        """The positions of the arguments' arrays, as attributes, in whose places there are others, or nothing."""
        if self.arguments is None:
            return frozenset()
        kept = {i for lane, i in self.arguments[1] if lane == FORWARDED}
        return self.attributes - kept

    def forwarding(self, untouched: Mapping[Place, int]) -> RefOutcome:
        """The outcome in which arrays of the output are the arguments' own: the positions of these, by place."""
        if not untouched:
            return self
        return replace(self, sources=tuple((FORWARDED, untouched[s]) if s in untouched else s for s in self.sources))

    def sparse(self, values: Sequence[Any]) -> Any:
        """A tree like the output: values at what rode in its first lane, and `None` elsewhere."""
        return self._tree([values[place] if lane == 0 else None for lane, place in self.sources], _Nothing())

    def read_sparse(self, tree: Any) -> list[Any]:
        """For each leaf of the first lane its value in a tree like the output, or None."""
        # By path, because a sparse tree may be short of whole objects, and has fewer leaves.
        given = {leaf.path: leaf.value for leaf in take_apart(self.graph, tree).leaves}
        # The output again, to know the paths of its leaves: parts of it may be missing in the tree.
        leaves = take_apart(self.graph, self._tree([np.zeros(())] * len(self.sources), IndexMap())).leaves
        pairs = zip(leaves, self.sources, strict=True)
        return [given.get(leaf.path) for leaf, (lane, _) in pairs if lane == 0]

    def _tree(self, filled: Sequence[Any], known: IndexMap) -> Any:
        count = self.graphdef.num_leaves
        return build_output(self, filled[:count], filled[count:], known, None)


class _Nothing(IndexMap):
    """Of the arguments, which an output may refer to by number, there is nothing in a tree like the output."""

    def __missing__(self, number: int) -> None:
        return None


def hand_over(
    plan: Plan, outcome: RefOutcome, values: Sequence[Any], groups: Groups, leaves: Sequence[Any] | None = None
) -> Any:
    """Writes what changed into the caller's objects, after all checks, and gives the output.

    Args:
        plan: of the caller's objects.
        outcome: what the function returned and did.
        values: the arguments' leaves.
        groups: the lanes that came out.
        leaves: the Variables and arrays of the arguments, where their order is not the plan's.

    Raises:
        TraceContextError: if something to be written is of another trace level.
    """
    leaves = plan.leaves if leaves is None else leaves
    # Numbers are turned into objects only if any are used: most calls update Variables, and return arrays.
    refers = outcome.arguments is not None or outcome.graphdef.nodes
    known = IndexMap((number, plan.node(number)) for number in plan.by_number) if refers else IndexMap()
    if outcome.updates or outcome.carried or outcome.metadata or outcome.arguments or outcome.placed:
        plan.check_writable()
    # All that can fail is computed before anything is written.
    # What is returned from a place of the carry is the caller's own Variable, which gets its last value below.
    own = {(lane, place): leaves[i] for i, lane, place in outcome.carried if type(leaves[i]) in VARIABLE_TYPES}
    filled = [own[s] if s in own else _pick(s, values, groups) for s in outcome.sources]
    updates = [(leaves[i], groups[lane][place]) for i, lane, place in (*outcome.updates, *outcome.carried)]
    updates += to_place([leaves[i] for i, _ in outcome.placed], [sharding for _, sharding in outcome.placed])
    updates = [(leaf, value) for leaf, value in updates if type(leaf) in VARIABLE_TYPES]
    variables, written = [leaf for leaf, _ in updates], [value for _, value in updates]
    metadata = [(leaves[i], new) for i, new in outcome.metadata]
    sources = () if outcome.arguments is None else outcome.arguments[1]
    attributes = [_pick(source, values, groups) for source in sources]

    def write() -> IndexMap:
        # A copy: in it the objects of the output get their numbers, while `known` stays what the caller has.
        found = IndexMap(known)
        if outcome.arguments is not None:
            found = _rewrite(plan, outcome.arguments[0], attributes, known)
        write_all(variables, written)
        for variable, new in metadata:
            _store(variable, "_nnx_metadata", new)
            # After the store, as with every mutation (see `versions`).
            structure_epoch.advance()
        return found

    # Interrupted, it runs again from its start: half of the updates would be a state that no program was ever in.
    index_ref = completed(write)
    count = outcome.graphdef.num_leaves
    return build_output(outcome, filled[:count], filled[count:], index_ref, known)


def to_be_placed(
    variables: Sequence[Any], rides: Sequence[Ride], updates: Sequence[tuple[int, int, int]]
) -> tuple[tuple[int, Any], ...]:
    """The Variables that have not changed, but are to stay where jit was asked to have them, with their sharding."""
    changed = {i for i, _, _ in updates}
    return tuple(
        (i, ride.kept_at)
        for i, (variable, ride) in enumerate(zip(variables, rides, strict=False))
        if variable is not None and i not in changed and ride.kept_at is not None
    )


def to_place(variables: Sequence[Any], shardings: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The Variables that are not yet where an argument's sharding wants them, with their value there.

    JAX would move an uncommitted array at each call anew. One that is committed is where it has to be, or JAX says so.
    """
    pairs = zip(variables, shardings, strict=True)
    return [(v, jax.device_put(v._raw_value, where)) for v, where in pairs if not _is_committed(v._raw_value)]


def _is_committed(value: Any) -> bool:
    leaves = (value,) if isinstance(value, jax.Array) else jax.tree.leaves(value)
    return all(isinstance(leaf, Tracer) or getattr(leaf, "committed", False) for leaf in leaves)


def _pick(source: tuple[int, int], values: Sequence[Any], groups: Groups) -> Any:
    lane, place = source
    return as_array(values[place]) if lane == FORWARDED else groups[lane][place]


def _rewrite(plan: Plan, graphdef: GraphDef[Any], leaves: list[Any], known: IndexMap) -> IndexMap:
    index_ref = IndexMap()
    unflattener = Unflattener(graphdef, leaves, index_ref, known)
    for _ in plan.starts:
        unflattener.node()
    return index_ref


def build_output(
    outcome: RefOutcome, leaves: Sequence[Any], plain: Sequence[Any], index_ref: IndexMap, outer: IndexMap | None
) -> Any:
    """The output: new objects, and the caller's own where it refers to them."""
    graphs = Unflattener(outcome.graphdef, leaves, index_ref, outer)
    return jax.tree.unflatten(outcome.treedef, put_together(outcome.items, graphs, plain))
