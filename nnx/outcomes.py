"""Outcomes: what a function over graphs returned and did, taken apart inside a trace and put into effect outside of it.

Inside (`Leaving`): the arguments' live objects are looked at again. Variables whose value is another object than what
they were given have changed; with graph updates, the arguments' structure is described again too, numbered so that what
was there before is recognised. The output is described after the arguments, so that it refers to them by number.

Outside (`hand_over`): everything is checked first, then written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
from weft.core.agree import Fixed, subtrees
from weft.core.errors import AxisError, CarryError
from weft.core.interpret import NOT_UPDATED, Call, Crossing, Departure, Groups
from weft.core.paths import Path, format_path
from weft.core.rides import Carry, Ride
from weft.core.values import FORWARDED, as_array
from weft.nnx.errors import AliasError, DuplicateError, StructureError
from weft.nnx.flattening import Flattener
from weft.nnx.graphdef import GraphDef, IndexMap, RefMap
from weft.nnx.plan import Plan
from weft.nnx.tree import ways_out
from weft.nnx.unflattening import Unflattener
from weft.nnx.variable import VARIABLE_TYPES
from weft.nnx.versions import structure_epoch
from weft.transforms.carries import ALONG

if TYPE_CHECKING:
    from weft.nnx.references import Memory, References

_store = object.__setattr__


@dataclass(frozen=True)
class RefOutcome:
    """What a function returned and did, without the arrays.

    Attributes:
        updates: (leaf, lane, place) for each leaf of the arguments that changed.
        metadata: (leaf, metadata) for each Variable whose metadata changed.
        arguments: the arguments' graphs as they are now, if their structure changed, with sources of their leaves.
        treedef, items: of the output, as in `RefStructure`.
        graphdef: of the output's graphs; it refers to the arguments' by number.
        sources: (lane, place) of each leaf of the output's graphs, then of its arrays; or (FORWARDED, leaf).
        carried: (leaf, lane, place) for each leaf of the arguments that is carried.
        known: the leaves of the arguments that are Variables.
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

    def __hash__(self) -> int:
        return hash((self.updates, self.sources))


class Leaving:
    """The end of one call inside its trace."""

    def __init__(
        self,
        boundary: References,
        crossing: Crossing,
        values: Sequence[Any],
        live: Call,
        memory: Memory,
        departure: Departure,
    ):
        self.boundary = boundary
        self.crossing = crossing
        self.values = values
        self.live = live
        self.memory = memory
        self.departure = departure
        self.lanes = _Lanes(departure)
        # Where a live Variable of the arguments is among the leaves.
        self.position = {id(v): i for i, v in enumerate(memory.holders) if v is not None}
        # And where an array that is an attribute.
        self.arrays = {
            id(value): i for i, (v, value) in enumerate(zip(memory.holders, values, strict=False)) if v is None
        }
        self.numbers = RefMap()
        # Where what is carried leaves, by identity of the live Variable or array.
        self.carried_places: dict[int, tuple[int, int]] = {}
        # Updates of Variables of arguments whose structure has changed.
        self.written: list[tuple[int, int, int]] = []

    def outcome(self, out: Any) -> tuple[Groups, RefOutcome]:
        carried = self._carried(out)
        arguments = self._arguments() if self.boundary.updates else None
        updates = self._updates() if arguments is None else tuple(self.written)
        metadata = self._metadata()
        treedef, items, graphdef, sources = self._output(out, carried)
        writes = tuple(
            (position, *carried[i])
            for i, position in enumerate(p for p, ride in enumerate(self.crossing.rides) if ride is Carry)
            if carried and i < len(carried) and position < len(self.memory.holders)
        )
        known = frozenset(self.position.values())
        outcome = RefOutcome(updates, metadata, arguments, treedef, items, graphdef, sources, writes, known)
        return self.lanes.finished(), outcome

    # ------------------------------------------------------------------ what the function did

    def _updates(self) -> tuple[tuple[int, int, int], ...]:
        sources = ((i, self._changed(i, v)) for i, v in enumerate(self.memory.holders) if v is not None)
        return tuple((i, *source) for i, source in sources if source is not None)

    def _metadata(self) -> tuple[tuple[int, Any], ...]:
        """The Variables whose metadata changed, with the new."""
        found: list[tuple[int, Any]] = []
        for i, (variable, holder) in enumerate(zip(self.memory.holders, self.crossing.structure.holders, strict=True)):
            if variable is None or variable._var_metadata is holder.metadata:
                continue
            ride = self.departure.updates(self.crossing.rides[i])
            if ride is NOT_UPDATED or variable._var_metadata == holder.metadata:
                continue
            if ride == ALONG:
                raise CarryError(
                    "the metadata of a Variable that is updated in a scan changes from one iteration to the next",
                    at=self._place(i),
                    fix="set it before or after the scan",
                )
            found.append((i, variable._var_metadata))
        return tuple(found)

    def _changed(self, i: int, variable: Any) -> tuple[int, int] | None:
        """Where the changed value of an argument's Variable leaves, or None if it has not changed."""
        ride = self.departure.updates(self.crossing.rides[i])
        if ride is NOT_UPDATED or not self._is_updated(i, variable._raw_value):
            return None
        return self.lanes.put(ride, variable._raw_value, lambda: self._place(i))

    def _is_updated(self, i: int, value: Any) -> bool:
        # What was learned beforehand holds: JAX may hand on an unchanged value as another tracer.
        updated = self.departure.updated
        return value is not self.values[i] if updated is None else i in updated

    def _place(self, i: int) -> str:
        item, path = self.crossing.structure.paths[i]
        return format_path((f"argument {item}", *path))

    def _arguments(self) -> tuple[GraphDef[Any], tuple[tuple[int, int], ...]] | None:
        """The arguments' graphs as they are now, if their structure changed."""
        flattener = Flattener(self.numbers, RefMap.from_indexmap(self.memory.index_ref), True)
        roots: list[int] = []
        for root in self.memory.roots:
            roots.append(len(flattener.leaves))
            flattener.root(root)
        graphdef = flattener.graphdef()
        check_levels(self.numbers)
        before = self.crossing.structure.graphdef
        if graphdef.with_no_outer_index() == before and self._same_things(flattener.leaves):
            return None
        find = self._rides_now(roots, flattener.paths or [], flattener.leaves)
        sources = tuple(self._source(leaf, find(i)) for i, leaf in enumerate(flattener.leaves))
        return graphdef, sources

    def _same_things(self, leaves: Sequence[Any]) -> bool:
        """Whether objects, Variables and arrays of the arguments are where they were."""
        before = self.memory.index_ref
        if any(before.get(number) is not node for node, number in self.numbers.items()):
            return False
        pairs = zip(leaves, self.memory.holders, self.values, strict=False)
        return all(variable is not None or leaf is value for leaf, variable, value in pairs)

    def _rides_now(self, roots: Sequence[int], paths: Sequence[Path], leaves: Sequence[Any]) -> Callable[[int], Ride]:
        """The ride of leaf `i` of the arguments as they are now, from the prefix that they came with."""
        prefix = self.departure.arrive(self.live)
        prefix = prefix[1:] if isinstance(prefix, tuple) and len(prefix) == 3 else prefix
        tree = self.boundary.take_apart(self.live[1:])
        specs = self.boundary.specs(prefix, tree, self.departure.is_ride, "in_axes")
        finders = [self.boundary.finder(specs[place], "in_axes") for place in tree.nodes]

        def find(i: int) -> Ride:
            root = max(r for r, start in enumerate(roots) if start <= i)
            return self.departure.updates(finders[root](paths[i], leaves[i]))

        return find

    def _source(self, leaf: Any, ride: Ride) -> tuple[int, int]:
        """Where the value of a leaf comes from: an argument's, unchanged, or a lane."""
        value = leaf._raw_value if type(leaf) in VARIABLE_TYPES else leaf
        i = self.position.get(id(leaf))
        if i is not None:
            ride = self.departure.updates(self.crossing.rides[i])
            if ride is NOT_UPDATED or not self._is_updated(i, value):
                return FORWARDED, i
            source = self.lanes.put(ride, value, lambda: self._place(i))
            self.written.append((i, *source))
            return source
        carried = self.carried_places.get(id(leaf))
        if carried is not None:
            return carried
        i = self.arrays.get(id(leaf))
        if i is not None and ride == self.departure.updates(self.crossing.rides[i]):
            return FORWARDED, i
        if ride == ALONG:
            raise CarryError(
                "the carry of scan changes from one iteration to the next",
                at=f"something new in an argument that is carried: {type(leaf).__name__}",
                fix="make it before the scan",
            )
        return self.lanes.put(ride, value, lambda: "argument")

    # ------------------------------------------------------------------ what the function returned

    def _carried(self, out: Any) -> list[tuple[int, int]]:
        """Puts what is carried into its lane, in the order in which it came in."""
        if Carry not in self.departure.lanes:
            return []
        parts = subtrees(self.departure.prefix, out, self.departure.is_ride, Carry)
        apart = self.boundary.take_apart(parts[0] if len(parts) == 1 else tuple(parts))
        places: list[tuple[int, int]] = []
        for leaf in apart.leaves:
            place = self.lanes.put(Carry, leaf.value, lambda: "carry")
            places.append(place)
            self.carried_places[id(leaf.value if leaf.holder is None else leaf.holder)] = place
        return places

    def _output(self, out: Any, carried: Sequence[Any]) -> tuple[Any, tuple[Any, ...], GraphDef[Any], Any]:
        boundary, departure = self.boundary, self.departure
        apart = boundary.shape_of(out)
        specs = boundary.specs(departure.prefix, apart, departure.is_ride, departure.option)
        flattener, sources, plain = self._flattener(), [], []
        for place in apart.nodes:
            start, repeats = len(flattener.leaves), len(flattener.repeats)
            flattener.root(apart.flat[place])
            find = boundary.finder(specs[place], departure.option)
            found = list(zip(flattener.leaves, flattener.paths or (), strict=True))
            for leaf, path in found[start:]:
                sources.append(self._out_source(leaf, find, path, place))
            self._check_repeats(flattener.repeats[repeats:], find, place)
        if boundary.updates:
            check_levels(self.numbers)
        for spec, item, value in zip(specs, apart.structure.items, apart.flat, strict=True):
            if not isinstance(item, Fixed) and item.name == "array":
                plain.append(self._plain_source(value, spec))
        return (apart.structure.treedef, apart.structure.items, flattener.graphdef(), (*sources, *plain))

    def _flattener(self) -> Flattener:
        if self.boundary.updates:
            if not self.numbers:
                for root in self.memory.roots:
                    Flattener(self.numbers, None, True).root(root)
            return Flattener(self.numbers, RefMap.from_indexmap(self.memory.index_ref), True)
        return Flattener(RefMap(), None, True)

    def _out_source(self, leaf: Any, find: Callable[[Path, Any], Ride], path: Path, place: int) -> tuple[int, int]:
        ride = find(path, leaf)
        carried = self.carried_places.get(id(leaf))
        if carried is not None and ride is Carry:
            return carried
        known = id(leaf) in self.position
        if known and not self.boundary.updates and not self.boundary.copies:
            raise self._duplicate(leaf, path, place)
        if known and not self.boundary.copies:
            return self._source(leaf, ride)
        value = leaf._raw_value if type(leaf) in VARIABLE_TYPES else leaf
        return self.lanes.put(ride, value, lambda: format_path((f"output {place}", *path)))

    def _plain_source(self, value: Any, ride: Ride) -> tuple[int, int]:
        carried = self.carried_places.get(id(value))
        if carried is not None and ride is Carry:
            return carried
        forwards = self.departure.forwards
        if forwards is not None:
            for i, given in enumerate(self.values):
                if given is value and forwards(self.crossing.rides[i], ride):
                    return FORWARDED, i
        return self.lanes.put(ride, value, lambda: "output")

    def _duplicate(self, leaf: Any, path: Path, place: int) -> DuplicateError:
        function = self.boundary.function
        return DuplicateError(
            f"Duplicate {type(leaf).__name__}: nnx.{function} without graph updates does not support input Variables "
            "that are returned as outputs",
            at=[self._place(self.position[id(leaf)]), format_path((f"output {place}", *path))],
            fix=f"do not return it (its update comes back anyway), or use graph updates; or {ways_out(function)}",
        )

    def _check_repeats(
        self, repeats: Sequence[tuple[int, Path]], find: Callable[[Path, Any], Ride], place: int
    ) -> None:
        """Things of the output that were met before: in the arguments, or in the output itself."""
        by_number = {number: node for node, number in self.numbers.items()} if self.boundary.updates else {}
        for number, path in repeats:
            node = by_number.get(number)
            if self.boundary.copies:
                continue
            if not self.boundary.updates:
                if self.boundary.graph:
                    continue
                raise DuplicateError(
                    f"Duplicate in the output: nnx.{self.boundary.function} in tree mode (graph=False) "
                    "does not support shared references",
                    at=[format_path((f"output {place}", *path))],
                    fix=ways_out(self.boundary.function),
                )
            for below, variable in variables_below(node):
                i = self.position.get(id(variable))
                if i is None or self.crossing.rides[i] is Carry:
                    continue
                mine = self.departure.updates(self.crossing.rides[i])
                mine = self.crossing.rides[i] if mine is NOT_UPDATED else mine
                theirs = find((*path, *below), variable)
                if mine != theirs:
                    raise AliasError(
                        "Inconsistent aliasing detected: an argument is returned under another "
                        f"{self.departure.option}",
                        at=[
                            f"{self._place(i)}: {mine!r}",
                            f"{format_path((f'output {place}', *path, *below))}: {theirs!r}",
                        ],
                        fix="return it under the same, or do not return it: its update comes back anyway",
                    )


def variables_below(node: Any) -> list[tuple[Path, Any]]:
    """The Variables in a graph, with their paths."""
    if type(node) in VARIABLE_TYPES:
        return [((), node)]
    plan = Plan([node])
    return [(path, leaf) for path, leaf in zip(plan.paths, plan.leaves, strict=True) if type(leaf) in VARIABLE_TYPES]


def check_levels(nodes: Iterable[Any]) -> None:
    """Refuses objects and Variables of another trace level.

    Raises:
        TraceLevelError: naming their type.
    """
    for node in nodes:
        state = node._trace_state if type(node) in VARIABLE_TYPES else getattr(node, "_pytree__trace", None)
        if state is not None and not state.is_valid():
            raise StructureError(
                f"Cannot extract graph node from different trace level: {type(node).__name__}",
                fix="pass it to the transform as an argument instead of closing over it",
            )


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
    refers = outcome.arguments is not None or outcome.graphdef.nodes
    known = IndexMap((number, plan.node(number)) for number in plan.by_number) if refers else IndexMap()
    index_ref = IndexMap(known)
    if outcome.updates or outcome.carried or outcome.metadata or outcome.arguments:
        plan.check_writable()
    # All that can fail is computed before anything is written.
    own = {(lane, place): leaves[i] for i, lane, place in outcome.carried if type(leaves[i]) in VARIABLE_TYPES}
    filled = [own[s] if s in own else _pick(s, values, groups) for s in outcome.sources]
    writes = [(leaves[i], groups[lane][place]) for i, lane, place in (*outcome.updates, *outcome.carried)]
    metadata = [(leaves[i], new) for i, new in outcome.metadata]
    if outcome.arguments is not None:
        graphdef, sources = outcome.arguments
        index_ref = _rewrite(plan, graphdef, [_pick(source, values, groups) for source in sources], known)
    for leaf, value in writes:
        if type(leaf) in VARIABLE_TYPES:
            _store(leaf, "_raw_value", value)
    for variable, new in metadata:
        _store(variable, "_var_metadata", new)
        structure_epoch.advance()
    count = outcome.graphdef.num_leaves
    return build_output(outcome, filled[:count], filled[count:], index_ref, known)


def _pick(source: tuple[int, int], values: Sequence[Any], groups: Groups) -> Any:
    lane, place = source
    return as_array(values[place]) if lane == FORWARDED else groups[lane][place]


def _rewrite(plan: Plan, graphdef: GraphDef[Any], leaves: list[Any], known: IndexMap) -> IndexMap:
    index_ref = IndexMap()
    unflattener = Unflattener(graphdef, leaves, index_ref, known, False, True)
    for _ in plan.starts:
        unflattener.node()
    return index_ref


def build_output(
    outcome: RefOutcome, leaves: Sequence[Any], plain: Sequence[Any], index_ref: IndexMap, outer: IndexMap | None
) -> Any:
    """The output: new objects, and the caller's own where it refers to them."""
    unflattener = Unflattener(outcome.graphdef, list(leaves), index_ref, outer, False, True)
    rest = iter(plain)
    flat: list[Any] = []
    for item in outcome.items:
        if isinstance(item, Fixed):
            flat.append(item.value)
        else:
            flat.append(unflattener.node() if item.name == "node" else next(rest))
    return jax.tree.unflatten(outcome.treedef, flat)


class _Lanes:
    """The lanes of an output under construction."""

    def __init__(self, departure: Departure):
        self.departure = departure
        self.groups: list[list[Any]] = [[] for _ in departure.lanes]

    def put(self, ride: Ride, value: Any, path: Callable[[], str]) -> tuple[int, int]:
        """Puts a value into the lane of its ride, and says where it is."""
        if ride in self.departure.refused:
            raise AxisError(
                f"something changes that cannot leave on {self.departure.option} {ride!r}",
                at=path(),
                fix=self.departure.refused[ride],
            )
        if ride not in self.departure.lanes:
            raise AxisError(
                "something new in an argument cannot leave, because updates of that argument do not come back",
                at=path(),
                fix="carry the argument or give it an axis, or return what is new",
            )
        lane = self.departure.lanes.index(ride)
        self.groups[lane].append(value)
        return lane, len(self.groups[lane]) - 1

    def finished(self) -> Groups:
        """The lanes."""
        return tuple(map(tuple, self.groups))
