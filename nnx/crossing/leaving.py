"""The end of a call over graphs, inside its trace: what the function returned and did, as lanes and an outcome.

The arguments' live objects are looked at again. Variables whose value is another object than what they were given have
changed; with graph updates, the arguments' structure is described again too, numbered so that what was there before is
recognised. The output is described after the arguments, so that it refers to them by number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core.errors import CarryError
from weft.core.interpreter.boundary import Call, Crossing, Departure, Groups, OutLanes, Place
from weft.core.interpreter.prefixes import subtrees
from weft.core.interpreter.rides import CARRIED, Along, Ride, read_with
from weft.core.interpreter.values import FORWARDED
from weft.core.paths import Path, format_path
from weft.nnx.crossing.apart import ARRAY, Memory, Tree, check_levels, named, shape_of, take_apart
from weft.nnx.crossing.modes import Mode
from weft.nnx.crossing.outcomes import RefOutcome, to_be_placed
from weft.nnx.crossing.prefixes import finder, specs, without_functions
from weft.nnx.errors import AliasError, DuplicateError, StructureError
from weft.nnx.graphs.definitions import GraphDef, RefMap
from weft.nnx.graphs.flattening import Flattener
from weft.nnx.graphs.plan import variables_below
from weft.nnx.graphs.trees import ways_out
from weft.nnx.variable.refs import is_array_ref, same_value
from weft.nnx.variable.variable import VARIABLE_TYPES, Variable

Finder = Callable[[Path, Any], Ride]


class Leaving:
    """The end of one call inside its trace."""

    def __init__(
        self,
        mode: Mode,
        crossing: Crossing,
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
        # Where a live Variable of the arguments is among the leaves.
        self.position = {id(v): i for i, v in enumerate(memory.holders) if v is not None}
        # And where an array that is an attribute.
        self.arrays = {
            id(value): i for i, (v, value) in enumerate(zip(memory.holders, values, strict=False)) if v is None
        }
        # And where any value is that the call was made of.
        self.given = {id(value): i for i, value in enumerate(values)}
        self.numbers = RefMap()
        # Where what is carried leaves, by identity of the live Variable or array.
        self.carried_places: dict[int, tuple[int, int]] = {}
        # Updates of Variables of arguments whose structure has changed.
        self.written: list[tuple[int, int, int]] = []
        # Where what is carried along leaves: in the order of positions, whatever the function does to it.
        self.along: dict[int, Place] = {}
        for i in sorted(departure.updated or ()):
            ride = crossing.rides[i].update
            if isinstance(ride, Along):
                self.along[i] = self.lanes.update(ride, values[i], lambda: "argument")

    def outcome(self, out: Any) -> tuple[Groups, Groups, RefOutcome]:
        carried = self._carried(out)
        arguments = self._arguments() if self.mode.updates else None
        updates = self._updates() if arguments is None else tuple(self.written)
        metadata = self._metadata()
        treedef, items, graphdef, sources = self._output(out, carried)
        writes = self._carried_writes(carried)
        known = frozenset(self.position.values())
        placed = to_be_placed(self.memory.holders, self.crossing.rides, updates) if self.mode.updates else ()
        outcome = RefOutcome(updates, metadata, arguments, treedef, items, graphdef, sources, writes, known, placed)
        return *self.lanes.finished(), outcome

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
            ride = self.crossing.rides[i].update
            if ride is None or variable._var_metadata == holder.metadata:
                continue
            if isinstance(ride, Along):
                raise CarryError(
                    "the metadata of a Variable that is updated in a scan changes from one iteration to the next",
                    at=self._place(i),
                    fix="set it before or after the scan",
                )
            found.append((i, variable._var_metadata))
        return tuple(found)

    def _changed(self, i: int, variable: Any) -> Place | None:
        """Where the changed value of an argument's Variable leaves, or None if it has not changed."""
        ride = self.crossing.rides[i].update
        if ride is None or not self._is_updated(i, variable._raw_value):
            return None
        return self._put(i, ride, variable._raw_value)

    def _put(self, i: int, ride: Ride, value: Any) -> Place:
        if i in self.along:
            return self.lanes.replace(self.along[i], value)
        return self.lanes.update(ride, value, lambda: self._place(i))

    def _is_updated(self, i: int, value: Any) -> bool:
        ride = self.crossing.rides[i]
        must_leave = ride.gives_away or (self.mode.updates and ride.always_leaves)
        if must_leave and not is_array_ref(value):
            # JAX may give a donated buffer to any output; and who asks for a place wants the value to be there.
            return True
        # What was learned beforehand holds: JAX may hand on an unchanged value as another tracer.
        updated = self.departure.updated
        return not same_value(value, self.values[i]) if updated is None else i in updated

    def _place(self, i: int) -> str:
        return format_path(self.mode.path_of(self.crossing.structure, i))

    def _arguments(self) -> tuple[GraphDef[Any], tuple[tuple[int, int], ...]] | None:
        """The arguments' graphs as they are now, if their structure changed."""
        flattener = Flattener(self.numbers, RefMap.from_indexmap(self.memory.index_ref), True)
        roots: list[int] = []
        repeats: list[int] = []
        for root in self.memory.roots:
            roots.append(len(flattener.leaves))
            repeats.append(len(flattener.repeats))
            flattener.root(root)
        graphdef = flattener.graphdef()
        check_levels(self.numbers)
        before = self.crossing.structure.graphdef
        if graphdef.with_no_outer_index() == before and self._same_things(flattener.leaves):
            return None
        finders = self._finders_now()
        self._check_met_again(flattener, finders, roots, repeats)
        found = zip(flattener.leaves, flattener.paths or (), strict=True)
        rides = [finders[_root_of(i, roots)](path, leaf) for i, (leaf, path) in enumerate(found)]
        sources = tuple(map(self._source, flattener.leaves, (ride.update for ride in rides)))
        return graphdef, sources

    def _check_met_again(
        self, flattener: Flattener, finders: Sequence[Finder], roots: Sequence[int], repeats: Sequence[int]
    ) -> None:
        """Refuses an argument that the function has put into another one, under another axis.

        Raises:
            AliasError: naming both paths.
        """
        paths = flattener.paths or []
        first = {id(leaf): i for i, leaf in enumerate(flattener.leaves)}
        by_number = {number: node for node, number in self.numbers.items()} if flattener.repeats else {}
        for repeat, (number, path) in enumerate(flattener.repeats):
            root = _root_of(repeat, repeats)
            for below, variable in variables_below(by_number[number]):
                i = first.get(id(variable))
                if i is None:
                    continue
                home = _root_of(i, roots)
                rides = (finders[home](paths[i], variable), finders[root]((*path, *below), variable))
                if all(ride.is_place for ride in rides) and rides[0].place != rides[1].place:
                    places = ((*self._base(home), *paths[i]), (*self._base(root), *path, *below))
                    raise AliasError(
                        "Inconsistent aliasing detected: a Variable is now reached under different in_axes",
                        at=[f"{format_path(place)}: {ride}" for place, ride in zip(places, rides, strict=True)],
                        fix="give both arguments the same, or do not put one into the other",
                    )

    def _base(self, root: int) -> Path:
        tree = take_apart(self.mode.graph, self.live[1:])
        return named(tree.bases[tree.nodes[root]], self.mode.names(self.live[0]))

    def _same_things(self, leaves: Sequence[Any]) -> bool:
        """Whether objects, Variables and arrays of the arguments are where they were."""
        before = self.memory.index_ref
        if any(before.get(number) is not node for node, number in self.numbers.items()):
            return False
        triples = enumerate(zip(leaves, self.memory.holders, self.values, strict=False))
        return all(
            variable is not None or (leaf is value and not self.crossing.rides[i].gives_away)
            for i, (leaf, variable, value) in triples
        )

    def _finders_now(self) -> list[Finder]:
        """For each argument what finds the ride of what is in it now, from the prefix that it came with."""
        graph, prefix = self.mode.graph, without_functions(self.departure.arrive(self.live))
        tree = take_apart(graph, self.live[1:])
        by_item = specs(graph, prefix, tree, self.departure.read, "in_axes")
        return [finder(graph, by_item[place], self.departure.read, "in_axes") for place in tree.nodes]

    def _source(self, leaf: Any, ride: Ride | None) -> Place:
        """Where the value of a leaf comes from: an argument's, unchanged, or a lane; new things leave on `ride`."""
        value = leaf._raw_value if type(leaf) in VARIABLE_TYPES else leaf
        i = self.position.get(id(leaf))
        if i is not None:
            place = self._changed(i, leaf)
            if place is None:
                return FORWARDED, i
            self.written.append((i, *place))
            return place
        carried = self.carried_places.get(id(leaf))
        if carried is not None:
            return carried
        i = self.arrays.get(id(leaf))
        if i is not None and ride == self.crossing.rides[i].update and not self.crossing.rides[i].gives_away:
            return FORWARDED, i
        if isinstance(ride, Along):
            raise CarryError(
                "the carry of scan changes from one iteration to the next",
                at=f"something new in an argument that is carried: {type(leaf).__name__}",
                fix="make it before the scan",
            )
        return self.lanes.update(ride, value, lambda: "argument")

    # ------------------------------------------------------------------ what the function returned

    def _carried(self, out: Any) -> list[tuple[int, int]]:
        """Puts what is carried into its lane, in the order in which it came in."""
        if CARRIED not in self.departure.lanes:
            return []
        parts = subtrees(self.departure.prefix, out, self.departure.read, CARRIED)
        apart = take_apart(self.mode.graph, parts[0] if len(parts) == 1 else tuple(parts))
        places: list[tuple[int, int]] = []
        for leaf in apart.leaves:
            place = self.lanes.output(CARRIED, leaf.value, lambda: "carry")
            places.append(place)
            self.carried_places[id(leaf.value if leaf.holder is None else leaf.holder)] = place
        return places

    def _carried_writes(self, carried: Sequence[tuple[int, int]]) -> tuple[tuple[int, int, int], ...]:
        """Where the leaves of the arguments that are carried get their last values from.

        A Variable gets its own, wherever in the carry it is; one that is not carried on keeps what it had.
        """
        positions = (p for p, ride in enumerate(self.crossing.rides) if ride == CARRIED)
        writes: list[tuple[int, int, int]] = []
        for position, place in zip(positions, carried, strict=False):
            if position < len(self.memory.holders):
                variable = self.memory.holders[position]
                found = place if variable is None else self.carried_places.get(id(variable))
                if found is not None:
                    writes.append((position, *found))
        return tuple(writes)

    def _output(self, out: Any, carried: Sequence[Any]) -> tuple[Any, tuple[Any, ...], GraphDef[Any], Any]:
        mode, departure = self.mode, self.departure
        apart = shape_of(mode.graph, out)
        by_item = specs(mode.graph, departure.prefix, apart, departure.read, departure.option)
        flattener, sources, plain = self._flattener(), [], []
        for place in apart.nodes:
            base = ("output", *apart.bases[place])
            start, repeats = len(flattener.leaves), len(flattener.repeats)
            flattener.root(apart.flat[place])
            find = finder(mode.graph, by_item[place], departure.read, departure.option)
            found = list(zip(flattener.leaves, flattener.paths or (), strict=True))
            for leaf, path in found[start:]:
                sources.append(self._out_source(leaf, find, path, base))
            if mode.updates:
                self._check_repeats(flattener.repeats[repeats:], find, base)
        if not (mode.graph or mode.copies):
            self._refuse_sharing(apart)
        if mode.updates:
            check_levels(self.numbers)
        for spec, item, value in zip(by_item, apart.structure.items, apart.flat, strict=True):
            if item is ARRAY:
                plain.append(self._plain_source(value, read_with(departure.read, spec)))
        return (apart.structure.treedef, apart.structure.items, flattener.graphdef(), (*sources, *plain))

    def _flattener(self) -> Flattener:
        if self.mode.updates:
            if not self.numbers:
                for root in self.memory.roots:
                    Flattener(self.numbers, None, True).root(root)
            return Flattener(self.numbers, RefMap.from_indexmap(self.memory.index_ref), True)
        return Flattener(RefMap(), None, True)

    def _out_source(self, leaf: Any, find: Callable[[Path, Any], Ride], path: Path, base: Path) -> Place:
        ride = find(path, leaf)
        carried = self.carried_places.get(id(leaf))
        if carried is not None and ride == CARRIED:
            return carried
        known = id(leaf) in self.position
        if known and not self.mode.updates and not self.mode.copies:
            raise self._duplicate(leaf, (*base, *path))
        if known and not self.mode.copies:
            return self._source(leaf, ride)
        # Nothing leaves an abstract evaluation.
        may_return = known or self.mode.updates or ride.is_abstract
        if not may_return and type(leaf) in VARIABLE_TYPES and not leaf._can_update:
            raise StructureError(
                f"Cannot return captured Variable: this {type(leaf).__name__} is closed over, of another trace level",
                at=format_path((*base, *path)),
                fix="pass it as an argument, or return a clone of it",
            )
        # A hijax Variable is a value of its own, unless only its shape is wanted.
        is_box = type(leaf) in VARIABLE_TYPES or (self.mode.copies and isinstance(leaf, Variable))
        value = leaf._raw_value if is_box else leaf
        return self.lanes.output(ride, value, lambda: format_path((*base, *path)))

    def _plain_source(self, value: Any, ride: Ride) -> Place:
        carried = self.carried_places.get(id(value))
        if carried is not None and ride == CARRIED:
            return carried
        i = self.given.get(id(value))
        if i is not None and ride.forwards and self.crossing.rides[i] == ride:
            return FORWARDED, i
        return self.lanes.output(ride, value, lambda: "output")

    def _duplicate(self, leaf: Any, path: Path) -> DuplicateError:
        function = self.mode.function
        return DuplicateError(
            f"Duplicate {type(leaf).__name__}: nnx.{function} without graph updates does not support input Variables "
            "that are returned as outputs",
            at=[self._place(self.position[id(leaf)]), format_path(path)],
            fix=f"do not return it (its update comes back anyway), or use graph updates; or {ways_out(function)}",
        )

    def _refuse_sharing(self, apart: Tree) -> None:
        """Refuses a Variable under two paths of the output, in tree mode."""
        first: dict[int, int] = {}
        for place in apart.nodes:
            before = first.setdefault(id(apart.flat[place]), place)
            if before != place:
                raise DuplicateError(
                    f"Duplicate {type(apart.flat[place]).__name__} in the output: nnx.{self.mode.function} in tree "
                    "mode (graph=False) does not support shared references",
                    at=[format_path(("output", *apart.bases[p])) for p in (before, place)],
                    fix=ways_out(self.mode.function),
                )

    def _check_repeats(
        self, repeats: Sequence[tuple[int, Path]], find: Callable[[Path, Any], Ride], base: Path
    ) -> None:
        """Things of the output that were met before: in the arguments, or in the output itself."""
        by_number = {number: node for node, number in self.numbers.items()}
        for number, path in repeats:
            for below, variable in variables_below(by_number[number]):
                i = self.position.get(id(variable))
                if i is None:
                    continue
                mine, theirs = self.crossing.rides[i], find((*path, *below), variable)
                if not mine.may_return_on(theirs):
                    raise AliasError(
                        "Inconsistent aliasing detected: an argument is returned under another "
                        f"{self.departure.option}",
                        at=[f"{self._place(i)}: {mine}", f"{format_path((*base, *path, *below))}: {theirs}"],
                        fix="return it under the same, or do not return it: its update comes back anyway",
                    )


def _root_of(i: int, starts: Sequence[int]) -> int:
    """The root that something found belongs to, by where each root's begin."""
    return max(root for root, start in enumerate(starts) if start <= i)
