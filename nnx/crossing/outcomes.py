"""Outcomes: records of a function's return value and mutations, and how they are applied to the caller's objects.

An outcome holds no array, no object and no tracer. It leaves the trace inside a treedef, and JAX keeps that treedef
with the compiled program, for later calls on other objects. Therefore an outcome has numbers only: leaf 3 of the
arguments has its new value in lane 1, place 0; the output's second object is number 5 of the arguments. Outside, the
plan of the caller's own objects turns numbers into objects again.

`hand_over` applies an outcome in an order that must not be changed:

1. it makes the checks that may refuse the call (may these Variables be written at this trace level?);
2. it computes everything that can fail, above all transfers to another sharding;
3. only then it writes structure, values and metadata: all of it, or nothing (see `writes`);
4. it builds the output last, because the output may refer to objects that only the writes have created.
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
from weft.nnx.crossing.flattening import put_together, take_apart
from weft.nnx.graphs.definitions import GraphDef, IndexMap
from weft.nnx.graphs.plan import Plan
from weft.nnx.graphs.unflattening import Unflattener
from weft.nnx.graphs.writes import completed, write_all
from weft.nnx.variable.variable import VARIABLE_TYPES
from weft.nnx.versions import structure_epoch

_store = object.__setattr__


@dataclass(frozen=True)
class RefOutcome:
    """The record of a function's return value and mutations, without arrays.

    Attributes:
        updates: (leaf, lane, place) for each leaf of the arguments that changed, as in `Place`.
        metadata: (leaf, metadata) for each Variable whose metadata changed.
        arguments: if the arguments' structure changed, the new structure and the sources of its leaves; else None.
        treedef, items: of the output, as in `RefStructure`.
        graphdef: the structure of the output's graphs, which refers to objects of the arguments by number.
        sources: (lane, place) of each leaf of the output's graphs, then of its arrays; or (FORWARDED, leaf).
        carried: (leaf, lane, place) for each leaf of the arguments that is carried.
        known: the leaves of the arguments that are Variables.
        attributes: the leaves of the arguments that are arrays, as attributes of objects.
        placed: (leaf, sharding) for each unchanged Variable in an argument for which jit was passed a sharding.
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

    def __repr__(self) -> str:
        # Short: JAX writes the treedef around this record for each trace under `checkify` and `shard_map`.
        return f"RefOutcome({len(self.updates)} updates)"

    def __hash__(self) -> int:
        # JAX hashes the treedef around this record at each call: these two fields are short, and tell most apart.
        return hash((self.updates, self.sources))

    @property
    def updated(self) -> frozenset[int]:
        """The positions of the arguments' leaves that are updated; all of them if their structure changed."""
        # A new structure has all Variables among its leaves, the changed and the unchanged alike.
        return self.known if self.arguments is not None else frozenset(i for i, _, _ in self.updates)

    @property
    def replaced(self) -> frozenset[int]:
        """The positions of array attributes that the function replaced or deleted."""
        # Such an attribute has no Variable to be written into: to replace it is to change the arguments' structure.
        if self.arguments is None:
            return frozenset()
        forwarded = {i for lane, i in self.arguments[1] if lane == FORWARDED}
        return self.attributes - forwarded

    def forwarding(self, untouched: Mapping[Place, int]) -> RefOutcome:
        """This outcome, with outputs at the places in `untouched` forwarded from arguments at these positions."""
        if not untouched:
            return self
        return replace(self, sources=tuple((FORWARDED, untouched[s]) if s in untouched else s for s in self.sources))

    def sparse(self, values: Sequence[Any]) -> Any:
        """A tree like the output, with a value for each leaf of the first lane and `None` elsewhere (a cotangent)."""
        return self._tree([values[place] if lane == 0 else None for lane, place in self.sources], _Nothing())

    def read_sparse(self, tree: Any) -> list[Any]:
        """The inverse of `sparse`: for each leaf of the first lane its value in `tree`, or None."""
        # By path, because users may pass a cotangent in which whole objects are None, with fewer leaves.
        by_path = {leaf.path: leaf.value for leaf in take_apart(self.graph, tree).leaves}
        # An output with zeros is built for the paths of its leaves, which an outcome does not have.
        leaves = take_apart(self.graph, self._tree([np.zeros(())] * len(self.sources), IndexMap())).leaves
        pairs = zip(leaves, self.sources, strict=True)
        return [by_path.get(leaf.path) for leaf, (lane, _) in pairs if lane == 0]

    def _tree(self, filled: Sequence[Any], known: IndexMap) -> Any:
        count = self.graphdef.num_leaves
        return build_output(self, filled[:count], filled[count:], known, None)


class _Nothing(IndexMap):
    """A mapping that returns None for every number, because a cotangent has no parts for the arguments."""

    def __missing__(self, number: int) -> None:
        return None


def hand_over(
    plan: Plan, outcome: RefOutcome, values: Sequence[Any], groups: Groups, leaves: Sequence[Any] | None = None
) -> Any:
    """Writes updates into the caller's objects after all checks, and returns the output.

    Args:
        plan: the plan of the caller's objects.
        outcome: the record of what the function returned and mutated.
        values: the arguments' leaves.
        groups: the lanes that came out of the transform.
        leaves: the Variables and arrays of the arguments, if they are not in the order of the plan.

    Raises:
        TraceContextError: if an object to be written was created at another trace level.
    """
    leaves = plan.leaves if leaves is None else leaves
    # Most calls update Variables and return arrays, and need no table from numbers to objects.
    refers = outcome.arguments is not None or outcome.graphdef.nodes
    known = IndexMap((number, plan.node(number)) for number in plan.by_number) if refers else IndexMap()
    if outcome.updates or outcome.carried or outcome.metadata or outcome.arguments or outcome.placed:
        plan.check_writable()
    # An output at the place of a carried Variable is the caller's own Variable, which is written below.
    own = {(lane, place): leaves[i] for i, lane, place in outcome.carried if type(leaves[i]) in VARIABLE_TYPES}
    filled = [own[s] if s in own else _pick(s, values, groups) for s in outcome.sources]
    updates = [(leaves[i], groups[lane][place]) for i, lane, place in (*outcome.updates, *outcome.carried)]
    updates += to_place([leaves[i] for i, _ in outcome.placed], [sharding for _, sharding in outcome.placed])
    # A carried array that is a plain attribute has no Variable to be written into.
    updates = [(leaf, value) for leaf, value in updates if type(leaf) in VARIABLE_TYPES]
    variables, written = [leaf for leaf, _ in updates], [value for _, value in updates]
    metadata = [(leaves[i], new) for i, new in outcome.metadata]
    sources = () if outcome.arguments is None else outcome.arguments[1]
    attributes = [_pick(source, values, groups) for source in sources]

    def write() -> IndexMap:
        # A copy: building the output adds its new objects to the table, but `known` must have the caller's alone.
        index_ref = IndexMap(known)
        if outcome.arguments is not None:
            index_ref = IndexMap()
            unflattener = Unflattener(outcome.arguments[0], attributes, index_ref, known)
            for _ in plan.starts:
                unflattener.node()
        write_all(variables, written)
        for variable, new in metadata:
            _store(variable, "_nnx_metadata", new)
            # After the store, as with every mutation (see `versions`).
            structure_epoch.advance()
        return index_ref

    # An interrupt amid the writes would leave half of the updates: `completed` runs `write` again, then raises.
    index_ref = completed(write)
    count = outcome.graphdef.num_leaves
    return build_output(outcome, filled[:count], filled[count:], index_ref, known)


def to_be_placed(
    variables: Sequence[Any], rides: Sequence[Ride], updates: Sequence[tuple[int, int, int]]
) -> tuple[tuple[int, Any], ...]:
    """The positions of unchanged Variables for which jit was passed a sharding, with that sharding."""
    changed = {i for i, _, _ in updates}
    # Rides are few, and asked once each: a model may have thousands of Variables.
    sharding_of = {
        id(ride): where for ride in {id(ride): ride for ride in rides}.values() if (where := ride.kept_at) is not None
    }
    return tuple([
        (i, sharding_of[id(ride)])
        for i, (variable, ride) in enumerate(zip(variables, rides, strict=False))
        if id(ride) in sharding_of and variable is not None and i not in changed
    ])  # fmt: skip


def to_place(variables: Sequence[Any], shardings: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Returns the Variables that are not on a fixed device yet, each with its value moved to the sharding of jit.

    JAX would move an uncommitted array again at each call. A committed one has the sharding, or JAX refuses the call.
    """
    pairs = zip(variables, shardings, strict=True)
    return [(v, jax.device_put(v._raw_value, where)) for v, where in pairs if not _is_committed(v._raw_value)]


def _is_committed(value: Any) -> bool:
    leaves = (value,) if isinstance(value, jax.Array) else jax.tree.leaves(value)
    return all(isinstance(leaf, Tracer) or getattr(leaf, "committed", False) for leaf in leaves)


def _pick(source: tuple[int, int], values: Sequence[Any], groups: Groups) -> Any:
    lane, place = source
    return as_array(values[place]) if lane == FORWARDED else groups[lane][place]


def build_output(
    outcome: RefOutcome, leaves: Sequence[Any], plain: Sequence[Any], index_ref: IndexMap, outer: IndexMap | None
) -> Any:
    """Builds the output: new objects, and the caller's own objects where the outcome refers to them."""
    graphs = Unflattener(outcome.graphdef, leaves, index_ref, outer)
    return jax.tree.unflatten(outcome.treedef, put_together(outcome.items, graphs, plain))
