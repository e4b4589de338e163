"""Ends a call inside its trace: turns what the user's function returned and mutated into lanes and an outcome.

Inside the trace the function had objects of its own, built around tracers, and mutated those. When it has returned,
`CallExit` answers three questions for the caller's objects outside:

- *Which values changed?* A Variable has changed if its value is not the very object that it was given. That is decided
  by identity, not by comparing arrays, and it is decided once for each Variable: its new value leaves the trace in one
  place, however many paths lead to the Variable. A value that did not change does not leave at all (FORWARDED), unless
  the caller asked for a sharding, or donated its buffer.
- *What is the arguments' structure now?* It is part of the outcome only with graph updates, and only if it differs from
  the structure that came in. The outcome refers to an object that was there before by its old number, by which the
  caller's own object is looked up outside. A new Variable leaves on the ride that the argument's prefix gives its path.
- *What was returned?* Objects of the arguments are referred to by number; everything else leaves on the rides of the
  output's prefix.

All three are answered from one walk over arguments and output (`looks`). Updates and outputs have separate lanes
(`OutLanes`), because a transform treats them differently: a scan stacks an output, but carries an update on to the next
step. Nothing is written to the caller's objects here: `outcomes` does that outside, once everything has succeeded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from weft.core.errors import CarryError
from weft.core.interpreter.boundary import Call, Crossing, Departure, Groups, OutLanes, Place
from weft.core.interpreter.hidden import refuse_hidden_tracers
from weft.core.interpreter.prefixes import RidesByKind, subtrees
from weft.core.interpreter.rides import CARRIED, Along, Ride, read_with
from weft.core.interpreter.values import FORWARDED
from weft.core.paths import Path, format_path
from weft.core.records.agree import Fixed
from weft.nnx.crossing.calls import Mode, RefCall
from weft.nnx.crossing.flattening import ARRAY, NO_GRAPHS, Memory, Tree, check_levels, named, shape_of, take_apart
from weft.nnx.crossing.looks import GraphWalk, Mark, Subwalk
from weft.nnx.crossing.outcomes import RefOutcome, to_be_placed
from weft.nnx.crossing.prefixes import finder, specs, without_functions
from weft.nnx.errors import AliasError, DuplicateError, StructureError
from weft.nnx.graphs.definitions import GraphDef
from weft.nnx.graphs.trees import duplicate, ways_out
from weft.nnx.variable.refs import is_array_ref, same_value
from weft.nnx.variable.variable import VARIABLE_TYPES, Variable
from weft.nnx.versions import structure_epoch


class Root(NamedTuple):
    """A graph of the arguments or of the output when it leaves.

    Attributes:
        base: the path of the graph.
        seen: the part of the walk below it.
        find: a function from a path in the graph, and the leaf there, to a ride.
        option: the option whose prefix gives the rides.
        filtered: whether the rides are chosen by filters.
    """

    base: Path
    seen: Subwalk
    find: Callable[[Path, Any], Ride]
    option: str
    filtered: bool


class CallExit:
    """The end of one call inside its trace."""

    def __init__(
        self,
        mode: Mode,
        crossing: Crossing[RefCall],
        values: Sequence[Any],
        live: Call,
        memory: Memory,
        departure: Departure,
    ):
        self.mode = mode
        self.crossing = crossing
        self.values = values
        self.live = live
        self.memory = memory
        self.departure = departure
        self.lanes = OutLanes(departure)
        # The rides on which a value must leave though it is unchanged.
        self.loud = {id(ride) for ride in crossing.loud if (mode.updates and ride.always_leaves) or ride.gives_away}
        # For each Variable of the arguments, by identity, the position of its leaf.
        self.position = {id(v): i for i, v in enumerate(memory.holders) if v is not None}
        # Likewise for each array that is a plain attribute.
        self.arrays = {
            id(value): i for i, (v, value) in enumerate(zip(memory.holders, values, strict=False)) if v is None
        }
        # Likewise for every traced value of the arguments, to forward an output that is an argument.
        self.value_position = {id(value): i for i, value in enumerate(values)}
        # By position, where the new value of a Variable leaves. It is decided once, for it may be asked for by the
        # arguments' new structure, by the output and as an update.
        self.places: dict[int, Place | None] = {}
        # By identity of a leaf, where the walk met it first, and its ride there.
        self.met: dict[int, tuple[Root, Path, Ride]] = {}
        # By identity of a Variable in the carry, or of an array there that has none, the place of its last value.
        self.carried_places: dict[int, Place] = {}
        # Where Variables that ride along with a loop leave: in the order of positions, whatever the function does. The
        # loop feeds these places to its next step in that order, so a Variable that the function detached from the
        # arguments must still have its place.
        self.along: dict[int, Place] = {}
        for i in sorted(departure.updated or ()):
            ride = crossing.rides[i].update
            if isinstance(ride, Along):
                self.along[i] = self.lanes.update(ride, values[i], lambda: "argument")

    @functools.cached_property
    def look(self) -> GraphWalk:
        """The walk over arguments and output."""
        # It needs the numbers that objects had on the way in, to refer to them; without graph updates nothing refers
        # to an object of the arguments.
        return GraphWalk(self.memory.index_ref if self.mode.updates else None)

    def outcome(self, out: Any) -> tuple[Groups, Groups, RefOutcome]:
        """Returns the lanes of the output, the lanes of the updates, and the outcome, which has everything else."""
        mode, holders = self.mode, self.memory.holders
        # The carry first: a scan needs it in the order in which it came in. If the same Variable is also an output or
        # an update, that refers to its place in the carry.
        carried = self._carried(out) if CARRIED in self.departure.lanes else []  # only loops have a carried lane
        # `shape_of` stops at graphs and makes no plan: the look below is the only walk over the output's graphs.
        out_tree = shape_of(mode.graph, out)
        rows = zip(out_tree.structure.items, out_tree.bases, out_tree.flat, strict=True)
        hidden = [(("output", *base), value) for item, base, value in rows if isinstance(item, Fixed)]
        refuse_hidden_tracers(((format_path(path), value) for path, value in hidden), "nnx")
        arguments, graphdef, returned, end = None, NO_GRAPHS, list[Subwalk](), Mark()
        # Nearly every function changes values alone and returns arrays, so that no graph need be walked.
        is_looked_at = bool(out_tree.nodes) or (mode.updates and not self._is_as_it_was())
        if is_looked_at:
            look = self.look
            # Arguments before the output, so that the output refers to them. Without graph updates only values return.
            looked_at = [look.at(root) for root in self.memory.roots] if mode.updates else []
            end = look.here()
            returned = [look.at(out_tree.flat[place]) for place in out_tree.nodes]
            graphdef = look.between(end, look.here())
            if mode.updates:
                check_levels([node for node, _ in look.ref_index.items()])
                arguments = self._arguments(looked_at, end)
        if arguments is None:
            reached = [i for i, variable in enumerate(holders) if variable is not None]
        else:
            # A Variable that the function detached from the arguments is not written: it stays outside as it was.
            leaves = self.look.leaves[: end.leaves]
            reached = [self.position[id(leaf)] for leaf in leaves if id(leaf) in self.position]
        if not (mode.updates or mode.copies):
            self._refuse_returned(out_tree, returned)  # first: a refused update would blame its ride
        rides, updated = self.crossing.rides, self.departure.updated
        # Most Variables have not changed, which is told here without a call for each.
        reached = [
            i
            for i in reached
            if (holders[i]._raw_value is not self.values[i] if updated is None else i in updated)
            or i in self.places
            or id(rides[i]) in self.loud
        ]
        updates = tuple([(i, *place) for i in reached if (place := self._changed(i)) is not None])
        metadata = self._metadata() if is_looked_at or not mode.updates else ()
        sources = self._output(out_tree, returned)
        treedef, items = out_tree.structure.treedef, out_tree.structure.items
        writes = self._carried_writes(carried) if carried else ()
        # By these, `RefOutcome.updated` and `replaced` tell Variables from plain array attributes.
        known = frozenset(self.position.values())
        arrays = frozenset(range(len(holders))) - known
        placed = to_be_placed(holders, self.crossing.rides, updates) if mode.updates else ()
        outcome = RefOutcome(
            updates, metadata, arguments, treedef, items, graphdef, sources, writes, known, arrays, placed, mode.graph
        )
        return *self.lanes.finished(), outcome

    # ------------------------------------------------------------------ what the function did

    def _metadata(self) -> tuple[tuple[int, Any], ...]:
        """The positions of the Variables whose metadata changed, with the new metadata."""
        changed_metadata: list[tuple[int, Any]] = []
        for i, (variable, holder) in enumerate(zip(self.memory.holders, self.crossing.structure.holders, strict=True)):
            if variable is None or variable._nnx_metadata is holder.metadata:
                continue
            ride = self.crossing.rides[i].update
            # Setting an entry to the value that it has makes a new record: equal records are no change.
            if ride is None or variable._nnx_metadata == holder.metadata:
                continue
            # A Variable that the function detached keeps its value outside, so it keeps its metadata too.
            if self.mode.updates and variable not in self.look.ref_index:
                continue
            # Metadata is part of the carry's structure, and a loop traces one step for all iterations.
            if isinstance(ride, Along):
                raise CarryError(
                    "the metadata of a Variable that is updated in a scan changes from one iteration to the next",
                    at=self._path_text(i),
                    fix="set it before or after the scan",
                )
            changed_metadata.append((i, variable._nnx_metadata))
        return tuple(changed_metadata)

    def _changed(self, i: int) -> Place | None:
        """The place in which an argument's Variable leaves with its new value, or None if it has not changed."""
        if i not in self.places:
            value, ride, updated = (
                self.memory.holders[i]._raw_value,
                self.crossing.rides[i].update,
                self.departure.updated,
            )
            # A donated buffer is deleted even if its value is unchanged, and a sharded one must come back as asked for.
            is_loud = id(self.crossing.rides[i]) in self.loud and not is_array_ref(value)
            # Loops and branches learned the updates by an abstract trace. In the real trace JAX may wrap an unchanged
            # value in another tracer, so identity would tell otherwise, and branches would return different sets.
            is_same = same_value(value, self.values[i]) if updated is None else i not in updated
            if ride is None or (is_same and not is_loud):
                self.places[i] = None
            elif i in self.along:
                self.places[i] = self.lanes.replace(self.along[i], value)
            else:
                self.places[i] = self.lanes.update(ride, value, lambda: self._path_text(i))
        return self.places[i]

    def _is_as_it_was(self) -> bool:
        """Whether it is certain that the structure and the metadata of the arguments have not changed."""
        return (
            self.memory.epoch == structure_epoch.now
            and self.crossing.structure.by_epoch
            and not self.departure.replaced  # all branches return what any of them replaces
            and True not in [is_array_ref(variable._raw_value) for variable in self.memory.holders]
        )

    def _path_text(self, i: int) -> str:
        return format_path(self.crossing.structure.path_of(i))

    def _arguments(self, arguments: Sequence[Subwalk], end: Mark) -> tuple[GraphDef[Any], tuple[Place, ...]] | None:
        """The arguments' new structure with the sources of its leaves, or None if the structure is as it was."""
        graphdef = self.look.between(Mark(), end)
        before = self.crossing.structure.graphdef
        # Equal structures are not enough: `model.a, model.b = model.b, model.a` swaps two objects of one class.
        same = graphdef.with_no_outer_index() == before and self._same_nodes(end)
        if same and not self.departure.replaced:
            return None
        # The prefix is applied again, to the arguments as they are now: a Variable that the function has added rides
        # as a filter or a path of the prefix says.
        graph, prefix = self.mode.graph, without_functions(self.departure.arrive(self.live))
        tree = shape_of(graph, self.live[1:])
        by_item = specs(graph, prefix, tree, self.departure.read, "in_axes")
        leaves: list[tuple[Path, Any, Ride]] = []
        for place, seen in zip(tree.nodes, arguments, strict=True):
            base = named(tree.bases[place], self.mode.names(self.live[0]))
            leaves += self._leaves_of(self._root(base, seen, by_item[place], "in_axes"))
        return graphdef, tuple(self._source(leaf, ride, path) for path, leaf, ride in leaves)

    def _same_nodes(self, end: Mark) -> bool:
        """Whether every object, Variable and array of the arguments is the same object as before in its place."""
        before = self.memory.index_ref
        for node, number in self.look.ref_index.items():
            if number < end.numbers and before.get(number) is not node:
                return False
        rows = zip(self.look.leaves[: end.leaves], self.memory.holders, self.values, self.crossing.rides, strict=False)
        moved = [variable is None and (leaf is not value or ride.gives_away) for leaf, variable, value, ride in rows]
        return not any(moved)

    def _root(self, base: Path, seen: Subwalk, spec: Any, option: str) -> Root:
        find = finder(spec, self.departure.read, option)
        return Root(base, seen, find, option, isinstance(spec, RidesByKind))

    def _leaves_of(self, root: Root) -> list[tuple[Path, Any, Ride]]:
        """The leaves that the walk met first below a root, each with its whole path and its ride.

        Raises:
            AliasError: for a Variable that the walk had met under another place, naming both paths.
        """
        leaves = self.look.leaves_of(root.seen)
        rows = [((*root.base, *path), leaf, root.find(path, leaf)) for path, leaf in leaves]
        self.met.update((id(leaf), (root, path, ride)) for path, leaf, ride in rows)
        if self.mode.copies:  # each path then has its own copy
            return rows
        is_argument = root.option == "in_axes"
        for path, variable in self.look.met_again(root.seen):
            first_root, first_path, first_ride = self.met.get(id(variable), (None, (), None))
            if first_root is root and root.filtered:
                continue  # within an item, filters are asked about the first path only, as on the way in
            first = format_path(first_path)
            i = self.position.get(id(variable))
            if first_root is None and i is not None:  # the arguments are as they were
                first, first_ride = self._path_text(i), self.crossing.rides[i]
            ride = root.find(path, variable)
            if first_ride is None or (is_argument and not (first_ride.is_place and ride.is_place)):
                continue  # a Variable of the carry may be put into an argument: it leaves in the carry
            if not first_ride.may_return_on(ride):
                options = {"in_axes" if first_root is None else first_root.option: None, root.option: None}
                raise AliasError(
                    "Inconsistent aliasing detected. The following nodes have different prefixes: "
                    f"a {type(variable).__name__} leaves under different {' and '.join(options)}",
                    at=[f"{first}: {first_ride}", f"{format_path((*root.base, *path))}: {ride}"],
                    fix="give both paths the same, or return its value (`variable[...]`)",
                )
        return rows

    def _source(self, leaf: Any, ride: Ride, path: Path) -> Place:
        """The source of a leaf in the arguments' new structure; if it is new or has moved, it leaves on `ride`."""
        position = self.position.get(id(leaf))
        if position is not None and not self._has_moved(position, ride):
            # The place of its update, if it has one: a value leaves the trace once, however many paths lead to it.
            return self._changed(position) or (FORWARDED, position)
        carried = self.carried_places.get(id(leaf))
        if carried is not None:
            return carried
        # A plain array attribute has no Variable to be written into. In its old place, and on the ride that it came
        # on, it stays outside; anywhere else it leaves the trace like a new array.
        i = self.arrays.get(id(leaf))
        stays = i is not None and i not in self.departure.replaced and not self.crossing.rides[i].gives_away
        if i is not None and stays and ride.update == self.crossing.rides[i].update:
            return FORWARDED, i
        if isinstance(ride.update, Along):
            raise CarryError(
                "the carry of scan changes from one iteration to the next",
                at=f"a new {type(leaf).__name__} in an argument that is carried",
                fix="create it before the scan",
            )
        value = leaf._raw_value if type(leaf) in VARIABLE_TYPES else leaf
        place = self.lanes.update(ride.update, value, lambda: format_path(path))
        if position is not None:
            self.places[position] = place
        return place

    def _has_moved(self, i: int, ride: Ride) -> bool:
        """Whether the path at which an argument's Variable is met first now has another axis or spec than it came on.

        The Variable then leaves as its new path says, or the caller's tree would not be what the prefix says of it.
        """
        entered = self.crossing.rides[i]
        return entered.is_place and ride.is_place and entered.place != ride.place

    # ------------------------------------------------------------------ what the function returned

    def _carried(self, out: Any) -> list[tuple[int, int]]:
        """Puts the carry into its lane, in the order in which it came in, and returns the places."""
        parts = subtrees(self.departure.prefix, out, self.departure.read, CARRIED)
        carried = take_apart(self.mode.graph, parts[0] if len(parts) == 1 else tuple(parts))
        places: list[tuple[int, int]] = []
        for leaf in carried.leaves:
            place = self.lanes.output(CARRIED, leaf.value, lambda: "carry")
            places.append(place)
            self.carried_places[id(leaf.value if leaf.holder is None else leaf.holder)] = place
        return places

    def _carried_writes(self, carried: Sequence[tuple[int, int]]) -> tuple[tuple[int, int, int], ...]:
        """For each leaf of the arguments that is carried, the place of its last value.

        A Variable gets its own last value, wherever in the carry the function put it, or keeps its value if it is gone.
        """
        # Both are in the order of the carry's leaves; an earlier check has refused a carry of another structure.
        positions = (p for p, ride in enumerate(self.crossing.rides) if ride == CARRIED)
        writes: list[tuple[int, int, int]] = []
        for position, place in zip(positions, carried, strict=False):
            if position < len(self.memory.holders):
                variable = self.memory.holders[position]
                last = place if variable is None else self.carried_places.get(id(variable))
                if last is not None:
                    writes.append((position, *last))
        return tuple(writes)

    def _output(self, out_tree: Tree, returned: Sequence[Subwalk]) -> tuple[Place, ...]:
        """The source of each leaf of the output: first of its graphs, then of its arrays."""
        graph, departure = self.mode.graph, self.departure
        # This order is the one in which `build_output` consumes the values.
        by_item = specs(graph, departure.prefix, out_tree, departure.read, departure.option)
        sources: list[Place] = []
        for place, seen in zip(out_tree.nodes, returned, strict=True):
            base = ("output", *out_tree.bases[place])
            leaves = self._leaves_of(self._root(base, seen, by_item[place], departure.option))
            sources += [self._out_source(leaf, ride, path) for path, leaf, ride in leaves]
        if not (graph or self.mode.copies):
            self._refuse_sharing(out_tree)
        for spec, item, value in zip(by_item, out_tree.structure.items, out_tree.flat, strict=True):
            if item is ARRAY:
                sources.append(self._plain_source(value, read_with(departure.read, spec)))
        return tuple(sources)

    def _out_source(self, leaf: Any, ride: Ride, path: Path) -> Place:
        carried = self.carried_places.get(id(leaf))
        if carried is not None and ride == CARRIED:
            return carried
        known = id(leaf) in self.position
        # Without graph updates an output cannot refer to the caller's own Variable: it would become a second object.
        if known and not self.mode.updates and not self.mode.copies:
            raise self._duplicate(leaf, path)
        if known and not self.mode.copies:
            i = self.position[id(leaf)]
            if self._has_moved(i, ride):
                return self.lanes.output(ride, leaf._raw_value, lambda: format_path(path))
            return self._changed(i) or (FORWARDED, i)
        # An abstract evaluation returns shapes, so a captured Variable may be described.
        may_return = known or self.mode.updates or ride.is_abstract
        if not may_return and type(leaf) in VARIABLE_TYPES and not leaf._can_update:
            raise StructureError(
                f"Cannot return captured Variable: this {type(leaf).__name__} is closed over, from another trace level",
                at=format_path(path),
                fix="pass it as an argument, or return a clone of it",
            )
        # A traced hijax Variable is itself a value that JAX returns; with `copies` its content is returned instead.
        is_box = type(leaf) in VARIABLE_TYPES or (self.mode.copies and isinstance(leaf, Variable))
        value = leaf._raw_value if is_box else leaf
        # JAX refuses to return a ref from a trace; an abstract evaluation describes the array in it.
        value = value[...] if ride.is_abstract and is_array_ref(value) else value
        return self.lanes.output(ride, value, lambda: format_path(path))

    def _plain_source(self, value: Any, ride: Ride) -> Place:
        """The source of an array of the output: the carry, an argument that it is, or else a place of its own."""
        carried = self.carried_places.get(id(value))
        if carried is not None and ride == CARRIED:
            return carried
        # An output that is an argument is forwarded: XLA would copy its buffer.
        i = self.value_position.get(id(value))
        if i is not None and ride.forwards and ride.is_like(self.crossing.rides[i]):
            return FORWARDED, i
        return self.lanes.output(ride, value, lambda: "output")

    def _refuse_returned(self, out_tree: Tree, returned: Sequence[Subwalk]) -> None:
        """Refuses an output that is a Variable of the arguments, unless the Variable is carried."""
        for place, seen in zip(out_tree.nodes, returned, strict=True):
            for path, leaf in self.look.leaves_of(seen):
                if id(leaf) in self.position and id(leaf) not in self.carried_places:
                    raise self._duplicate(leaf, ("output", *out_tree.bases[place], *path))

    def _duplicate(self, leaf: Any, path: Path) -> DuplicateError:
        function = self.mode.function
        return DuplicateError(
            f"Duplicate {type(leaf).__name__}: nnx.{function} without graph updates does not support Variable "
            "aliasing, where an input is returned as an output",
            at=[self._path_text(self.position[id(leaf)]), format_path(path)],
            fix=f"do not return it (its update is written back anyway), or use graph updates; or {ways_out(function)}",
        )

    def _refuse_sharing(self, out_tree: Tree) -> None:
        """Refuses a Variable under two paths of the output, in tree mode."""
        first: dict[int, int] = {}
        for place in out_tree.nodes:
            before = first.setdefault(id(out_tree.flat[place]), place)
            if before != place:
                first_path, second_path = (("output", *out_tree.bases[p]) for p in (before, place))
                raise duplicate(out_tree.flat[place], first_path, second_path, self.mode.function, " in the output")
