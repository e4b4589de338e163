"""The end of a call over graphs, inside its trace: what the function returned and did, as lanes and an outcome.

Inside of a trace the function had objects of its own, made around tracers, and mutated those. Now that it has returned,
three questions are answered, for the objects outside:

- *Which values changed?* A Variable has changed if its value is not the very object that it was given. That is decided
  by identity, not by comparing arrays, and it is decided once for each Variable: its new value leaves the trace in one
  place, however often the Variable is met. What did not change does not leave at all (FORWARDED), unless somebody
  asked for it to be somewhere, or gave its buffer away.
- *What is the arguments' structure now?* Only with graph updates, and only if it differs from what came in, is it part
  of the outcome: objects that were there before are referred to by the numbers that they had, so that outside the same
  objects are found again. A new Variable leaves on the ride that the argument's prefix gives to its path.
- *What was returned?* Objects of the arguments are referred to by number; everything else leaves on the rides of the
  output's prefix.

All three are read off one look (`looks`). What leaves for the arguments and what leaves for the output go to lanes of
their own (`OutLanes`), because a transform treats them differently: an output of a scan is stacked where its update
goes on to the next step. Nothing is written here: that is done outside, once all has succeeded (`outcomes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core.errors import CarryError
from weft.core.interpreter.boundary import Call, Crossing, Departure, Groups, OutLanes, Place
from weft.core.interpreter.hidden import refuse_hidden_tracers
from weft.core.interpreter.prefixes import subtrees
from weft.core.interpreter.rides import CARRIED, Along, Ride, read_with
from weft.core.interpreter.values import FORWARDED
from weft.core.paths import Path, format_path
from weft.core.records.agree import Fixed
from weft.nnx.crossing.apart import ARRAY, Memory, Tree, check_levels, named, shape_of, take_apart
from weft.nnx.crossing.calls import RefCall
from weft.nnx.crossing.looks import Look, Mark, Seen
from weft.nnx.crossing.modes import Mode
from weft.nnx.crossing.outcomes import RefOutcome, to_be_placed
from weft.nnx.crossing.prefixes import finder, specs, without_functions
from weft.nnx.errors import AliasError, DuplicateError, StructureError
from weft.nnx.graphs.definitions import GraphDef
from weft.nnx.graphs.trees import duplicate, ways_out
from weft.nnx.variable.refs import is_array_ref, same_value
from weft.nnx.variable.variable import VARIABLE_TYPES, Variable

Finder = Callable[[Path, Any], Ride]


class Leaving:
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
        # By the numbers of the way in, what was there before is referred to. Without graph updates nothing refers to
        # it.
        self.look = Look(memory.index_ref if mode.updates else None)
        # Where a live Variable of the arguments is among the leaves.
        self.position = {id(v): i for i, v in enumerate(memory.holders) if v is not None}
        # And where an array that is an attribute.
        self.arrays = {
            id(value): i for i, (v, value) in enumerate(zip(memory.holders, values, strict=False)) if v is None
        }
        # And where any value is that the call was made of.
        self.given = {id(value): i for i, value in enumerate(values)}
        # Where the values of the arguments' Variables leave, as far as that was decided.
        self.places: dict[int, Place | None] = {}
        # Where what is carried leaves, by identity of the live Variable or array.
        self.carried_places: dict[int, Place] = {}
        # Where what is carried along leaves: in the order of positions, whatever the function does to it. A loop gives
        # it to the next step by these places, so one that was taken out of the arguments keeps its own.
        self.along: dict[int, Place] = {}
        for i in sorted(departure.updated or ()):
            ride = crossing.rides[i].update
            if isinstance(ride, Along):
                self.along[i] = self.lanes.update(ride, values[i], lambda: "argument")

    def outcome(self, out: Any) -> tuple[Groups, Groups, RefOutcome]:
        """The lanes of the output, those of updates, and the rest."""
        mode, look, holders = self.mode, self.look, self.memory.holders
        # First: what is carried has its place by order, and what else is the same object refers to that place.
        carried = self._carried(out)
        # Without a plan: the look below is the one walk over it.
        apart = shape_of(mode.graph, out)
        rows = zip(apart.structure.items, apart.bases, apart.flat, strict=True)
        hidden = ((format_path(("output", *base)), value) for item, base, value in rows if isinstance(item, Fixed))
        refuse_hidden_tracers(hidden, "nnx")
        # Without graph updates nobody asks for the arguments' structure: their Variables are known.
        given = [look.at(root) for root in self.memory.roots] if mode.updates else []
        end = look.here()
        returned = [look.at(apart.flat[place]) for place in apart.nodes]
        if mode.updates:
            check_levels([node for node, _ in look.ref_index.items()])
        arguments = self._arguments(given, end) if mode.updates else None
        if arguments is None:
            reached = [i for i, variable in enumerate(holders) if variable is not None]
        else:
            # What was taken out of the arguments is nobody's any more.
            reached = [self.position[id(leaf)] for leaf in look.leaves[: end.leaves] if id(leaf) in self.position]
        if not (mode.updates or mode.copies):
            self._refuse_returned(apart, returned)  # before what it changes is refused: that it is returned is why
        updates = tuple([(i, *place) for i in reached if (place := self._changed(i)) is not None])
        metadata = self._metadata()
        sources = self._output(apart, returned)
        treedef, items = apart.structure.treedef, apart.structure.items
        graphdef, writes = look.between(end, look.here()), self._carried_writes(carried)
        known = frozenset(self.position.values())
        arrays = frozenset(range(len(holders))) - known
        placed = to_be_placed(holders, self.crossing.rides, updates) if mode.updates else ()
        outcome = RefOutcome(
            updates, metadata, arguments, treedef, items, graphdef, sources, writes, known, arrays, placed, mode.graph
        )
        return *self.lanes.finished(), outcome

    # ------------------------------------------------------------------ what the function did

    def _metadata(self) -> tuple[tuple[int, Any], ...]:
        """The Variables whose metadata changed, with the new; they are where the function left them, or returned."""
        found: list[tuple[int, Any]] = []
        for i, (variable, holder) in enumerate(zip(self.memory.holders, self.crossing.structure.holders, strict=True)):
            if variable is None or variable._nnx_metadata is holder.metadata:
                continue
            ride = self.crossing.rides[i].update
            # Another record of the same metadata is no change: setting an entry to what it was makes one.
            if ride is None or variable._nnx_metadata == holder.metadata:
                continue
            # One that was taken out keeps its value outside, and so its metadata.
            if self.mode.updates and variable not in self.look.ref_index:
                continue
            if isinstance(ride, Along):
                raise CarryError(
                    "the metadata of a Variable that is updated in a scan changes from one iteration to the next",
                    at=self._place(i),
                    fix="set it before or after the scan",
                )
            found.append((i, variable._nnx_metadata))
        return tuple(found)

    def _changed(self, i: int) -> Place | None:
        """Where the changed value of an argument's Variable leaves, or None if it has not changed."""
        if i not in self.places:
            value, ride = self.memory.holders[i]._raw_value, self.crossing.rides[i].update
            if ride is None or not self._is_updated(i, value):
                self.places[i] = None
            elif i in self.along:
                self.places[i] = self.lanes.replace(self.along[i], value)
            else:
                self.places[i] = self.lanes.update(ride, value, lambda: self._place(i))
        return self.places[i]

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
        return format_path(self.crossing.structure.path_of(i))

    def _arguments(self, given: Sequence[Seen], end: Mark) -> tuple[GraphDef[Any], tuple[Place, ...]] | None:
        """The arguments' graphs as they are now, if their structure changed."""
        graphdef = self.look.between(Mark(), end)
        before = self.crossing.structure.graphdef
        # The structure may be equal though the things in it are others: two objects of one class that changed places.
        same = graphdef.with_no_outer_index() == before and self._same_things(end)
        if same and not self.departure.replaced:  # what another branch replaces leaves from this one as it is
            return None
        # The prefix is asked again, of the arguments as they are now: what is new in them rides where a filter or a
        # path in it says.
        finders = self._finders_now()
        self._check_met_again(given, finders)
        leaves = [
            (find(path, leaf), leaf)
            for seen, find in zip(given, finders, strict=True)
            for path, leaf in self.look.leaves_of(seen)
        ]
        return graphdef, tuple(self._source(leaf, ride.update) for ride, leaf in leaves)

    def _same_things(self, end: Mark) -> bool:
        """Whether objects, Variables and arrays of the arguments are where they were."""
        before = self.memory.index_ref
        for node, number in self.look.ref_index.items():
            if number < end.numbers and before.get(number) is not node:
                return False
        rows = zip(self.look.leaves[: end.leaves], self.memory.holders, self.values, self.crossing.rides, strict=False)
        moved = [variable is None and (leaf is not value or ride.gives_away) for leaf, variable, value, ride in rows]
        return not any(moved)

    def _finders_now(self) -> list[Finder]:
        """For each argument what finds the ride of what is in it now, from the prefix that it came with."""
        graph, prefix = self.mode.graph, without_functions(self.departure.arrive(self.live))
        tree = shape_of(graph, self.live[1:])
        by_item = specs(graph, prefix, tree, self.departure.read, "in_axes")
        return [finder(by_item[place], self.departure.read, "in_axes") for place in tree.nodes]

    def _check_met_again(self, given: Sequence[Seen], finders: Sequence[Finder]) -> None:
        """Refuses an argument that the function has put into another one, under another axis.

        Raises:
            AliasError: naming both paths.
        """
        if not self.look.repeats:
            return
        first = {id(leaf): (n, path) for n, seen in enumerate(given) for path, leaf in self.look.leaves_of(seen)}
        for root, seen in enumerate(given):
            for path, variable in self.look.met_again(seen):
                if id(variable) not in first:
                    continue
                home, place = first[id(variable)]
                one, other = finders[home](place, variable), finders[root](path, variable)
                if one.is_place and other.is_place and one.place != other.place:
                    raise AliasError(
                        "Inconsistent aliasing detected. The following nodes have different prefixes: a Variable is "
                        "now reached under different in_axes",
                        at=[
                            f"{format_path((*self._base(home), *place))}: {one}",
                            f"{format_path((*self._base(root), *path))}: {other}",
                        ],
                        fix="give both arguments the same, or do not put one into the other",
                    )

    def _base(self, root: int) -> Path:
        tree = shape_of(self.mode.graph, self.live[1:])
        return named(tree.bases[tree.nodes[root]], self.mode.names(self.live[0]))

    def _source(self, leaf: Any, ride: Ride | None) -> Place:
        """Where the value of a leaf comes from: an argument's, unchanged, or a lane; new things leave on `ride`."""
        i = self.position.get(id(leaf))
        if i is not None:
            # It leaves where its update does, so that it is computed and handed over once.
            return self._changed(i) or (FORWARDED, i)
        carried = self.carried_places.get(id(leaf))
        if carried is not None:
            return carried
        # An array that is an attribute has no box to be written into: it stays outside only in its old place, on the
        # ride that it came on, and elsewhere leaves like something new.
        i = self.arrays.get(id(leaf))
        stays = i is not None and i not in self.departure.replaced and not self.crossing.rides[i].gives_away
        if i is not None and stays and ride == self.crossing.rides[i].update:
            return FORWARDED, i
        if isinstance(ride, Along):
            raise CarryError(
                "the carry of scan changes from one iteration to the next",
                at=f"something new in an argument that is carried: {type(leaf).__name__}",
                fix="make it before the scan",
            )
        value = leaf._raw_value if type(leaf) in VARIABLE_TYPES else leaf
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
        # What is carried comes out in the order in which it went in; that the two are of one make was checked before.
        positions = (p for p, ride in enumerate(self.crossing.rides) if ride == CARRIED)
        writes: list[tuple[int, int, int]] = []
        for position, place in zip(positions, carried, strict=False):
            if position < len(self.memory.holders):
                variable = self.memory.holders[position]
                found = place if variable is None else self.carried_places.get(id(variable))
                if found is not None:
                    writes.append((position, *found))
        return tuple(writes)

    def _output(self, apart: Tree, returned: Sequence[Seen]) -> tuple[Place, ...]:
        """Where each leaf of the output comes from: of its graphs, then of its arrays."""
        graph, departure = self.mode.graph, self.departure
        # Its graphs first and its arrays after them, the order in which `build_output` takes them.
        by_item = specs(graph, departure.prefix, apart, departure.read, departure.option)
        sources: list[Place] = []
        for place, seen in zip(apart.nodes, returned, strict=True):
            base = ("output", *apart.bases[place])
            find = finder(by_item[place], departure.read, departure.option)
            sources += [
                self._out_source(leaf, find(path, leaf), (*base, *path)) for path, leaf in self.look.leaves_of(seen)
            ]
            if not self.mode.copies:
                self._check_returned(seen, find, base)
        if not (graph or self.mode.copies):
            self._refuse_sharing(apart)
        for spec, item, value in zip(by_item, apart.structure.items, apart.flat, strict=True):
            if item is ARRAY:
                sources.append(self._plain_source(value, read_with(departure.read, spec)))
        return tuple(sources)

    def _out_source(self, leaf: Any, ride: Ride, path: Path) -> Place:
        carried = self.carried_places.get(id(leaf))
        if carried is not None and ride == CARRIED:
            return carried
        known = id(leaf) in self.position
        # Without graph updates an output cannot refer to the caller's own object: it would become a second one.
        if known and not self.mode.updates and not self.mode.copies:
            raise self._duplicate(leaf, path)
        if known and not self.mode.copies:
            return self._source(leaf, ride)
        # Nothing leaves an abstract evaluation.
        may_return = known or self.mode.updates or ride.is_abstract
        if not may_return and type(leaf) in VARIABLE_TYPES and not leaf._can_update:
            raise StructureError(
                f"Cannot return captured Variable: this {type(leaf).__name__} is closed over, of another trace level",
                at=format_path(path),
                fix="pass it as an argument, or return a clone of it",
            )
        # A hijax Variable is a value of its own, unless only its shape is wanted.
        is_box = type(leaf) in VARIABLE_TYPES or (self.mode.copies and isinstance(leaf, Variable))
        value = leaf._raw_value if is_box else leaf
        # A ref cannot leave a trace; of an abstract one nobody asks more than what it holds.
        value = value[...] if ride.is_abstract and is_array_ref(value) else value
        return self.lanes.output(ride, value, lambda: format_path(path))

    def _plain_source(self, value: Any, ride: Ride) -> Place:
        carried = self.carried_places.get(id(value))
        if carried is not None and ride == CARRIED:
            return carried
        # By identity: an output that is an argument need not be computed, nor copied by the compiled program.
        i = self.given.get(id(value))
        if i is not None and ride.forwards and ride.is_like(self.crossing.rides[i]):
            return FORWARDED, i
        return self.lanes.output(ride, value, lambda: "output")

    def _refuse_returned(self, apart: Tree, returned: Sequence[Seen]) -> None:
        """Refuses a Variable of the arguments in the output, unless it is carried."""
        for place, seen in zip(apart.nodes, returned, strict=True):
            for path, leaf in self.look.leaves_of(seen):
                if id(leaf) in self.position and id(leaf) not in self.carried_places:
                    raise self._duplicate(leaf, ("output", *apart.bases[place], *path))

    def _duplicate(self, leaf: Any, path: Path) -> DuplicateError:
        function = self.mode.function
        return DuplicateError(
            f"Duplicate {type(leaf).__name__}: nnx.{function} without graph updates does not support Variable "
            "aliasing, where an input is returned as an output",
            at=[self._place(self.position[id(leaf)]), format_path(path)],
            fix=f"do not return it (its update comes back anyway), or use graph updates; or {ways_out(function)}",
        )

    def _refuse_sharing(self, apart: Tree) -> None:
        """Refuses a Variable under two paths of the output, in tree mode."""
        first: dict[int, int] = {}
        for place in apart.nodes:
            before = first.setdefault(id(apart.flat[place]), place)
            if before != place:
                one, other = (("output", *apart.bases[p]) for p in (before, place))
                raise duplicate(apart.flat[place], one, other, self.mode.function, " in the output")

    def _check_returned(self, seen: Seen, find: Finder, base: Path) -> None:
        """Refuses to return a thing of the arguments, or of the output itself, under another ride.

        Raises:
            AliasError: naming both paths.
        """
        for path, variable in self.look.met_again(seen):
            i = self.position.get(id(variable))
            if i is None:
                continue
            mine, theirs = self.crossing.rides[i], find(path, variable)
            if not mine.may_return_on(theirs):
                raise AliasError(
                    f"Inconsistent aliasing detected: an argument is returned under another {self.departure.option}",
                    at=[f"{self._place(i)}: {mine}", f"{format_path((*base, *path))}: {theirs}"],
                    fix="return it under the same, or its value (`variable[...]`); its update comes back anyway",
                )
