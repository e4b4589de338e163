"""The references boundary: graphs of mutable objects in, the same objects out, with what changed written back.

On the way in, objects and Variables among the arguments are planned together (`plan`): one structure without
identities, and one leaf for each Variable however often it is reached. Inside the trace fresh objects are made around
the traced values, and the user's function mutates those. On the way out, a Variable has changed if its value is not the
very object that it was given; changed values leave the trace on their argument's ride, unchanged ones do not leave at
all. Only when everything has been computed and checked are the caller's own objects written, by identity.

There are three modes:

- *graph with updates*: what is reachable from arguments and outputs is described again, with the numbers things had
  on the way in, so that new, deleted, swapped and shared attributes reach the caller's objects;
- *graph without updates*: sharing among arguments is kept, only Variables' values come back;
- *tree*: Modules are the pytrees that they are, only Variables' values come back, nothing may be shared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from weft.core.agree import Described, Fixed
from weft.core.interpret import Call, Crossing, Departure, Extract, Groups
from weft.core.leaves import NUMBERS, is_array
from weft.core.paths import Path, format_path, key_part
from weft.core.rides import Ride, RidesByKind
from weft.core.values import FORWARDED, parameter_names
from weft.nnx.errors import AliasError, AxisError, DuplicateError
from weft.nnx.foreign import refuse_foreign
from weft.nnx.graphdef import GraphDef, IndexMap
from weft.nnx.nodes import is_graph_node
from weft.nnx.outcomes import Leaving, RefOutcome, build_output, check_levels, hand_over, variables_below
from weft.nnx.plan import Plan, plan_of
from weft.nnx.quick import QuickEntry, quick_extractor
from weft.nnx.refs import is_array_ref
from weft.nnx.rides import ByFilter
from weft.nnx.state import State, from_flat_state
from weft.nnx.tree import check_is_pytree, ways_out
from weft.nnx.unflattening import Unflattener
from weft.nnx.variable import Variable


class _Mark:
    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return self.name


NODE, ARRAY = _Mark("node"), _Mark("array")


@dataclass(frozen=True)
class Holder:
    """What a leaf sits in: a Variable of this type and metadata, or (None) an array that is an attribute."""

    type: type | None
    metadata: Any = None


PLAIN = Holder(None)


@dataclass(frozen=True)
class RefLeaf:
    """A leaf on its way in: where it is, its value, and what holds it."""

    path: Path
    value: Any
    holder: Any = None

    @property
    def kind(self) -> type:
        return type(self.holder)


@dataclass(frozen=True)
class RefStructure:
    """A tree with graphs in it, without its arrays.

    Attributes:
        treedef: of the tree, with each graph and each array as a leaf.
        items: for each of those leaves NODE, ARRAY, or `Fixed` for a static value.
        graphdef: the joint structure of the graphs.
        holders: for each leaf of the graphs, what it sits in; leaves that are ARRAY items follow them.
        functions: the user's functions, if this is a call.
        paths: for each leaf its item, and its path inside of that.
        full_paths: for each leaf its path in the tree.
    """

    treedef: Any
    items: tuple[Any, ...]
    graphdef: GraphDef[Any]
    holders: tuple[Holder, ...]
    functions: tuple[Any, ...] = ()
    paths: tuple[tuple[int, Path], ...] = field(default=(), compare=False)
    full_paths: tuple[Path, ...] = field(default=(), compare=False)

    def __hash__(self) -> int:
        return hash((self.treedef, self.graphdef, len(self.items)))


@dataclass
class Tree:
    """A live tree taken apart: its structure, its plan, and the leaves."""

    structure: RefStructure
    flat: list[Any]
    plan: Plan
    nodes: list[int]  # which items are graphs
    leaves: list[RefLeaf]


@dataclass
class Memory:
    """What is remembered of a live call until its function has returned."""

    holders: list[Any]  # for each leaf of the graphs the live Variable, or None
    index_ref: IndexMap
    roots: list[Any]


class Identity(Fixed):
    """Something that must stay the same object."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __str__(self) -> str:
        return f"{type(self.value).__name__} {id(self.value):#x}"


class References:
    """The boundary of NNX graphs, in one of its modes.

    Args:
        graph: whether objects are graphs, with sharing and cycles, or trees.
        updates: whether structural changes reach the caller's objects.
        function: what the transform is called, for errors.
        copies: whether outputs are always new objects, also where they are arguments.
    """

    name = "references"
    has_updates = True

    def __init__(self, graph: bool, updates: bool, function: str, copies: bool = False):
        self.graph = graph
        self.updates = graph and updates and not copies
        self.function = function
        self.copies = copies
        self.carries_along = not self.updates

    # ------------------------------------------------------------------ taking apart

    def _is_item(self, value: Any) -> bool:
        if isinstance(value, Variable) or is_array_ref(value):
            return True
        if self.graph and is_graph_node(value):
            return True
        refuse_foreign(value)
        return False

    def take_apart(self, tree: Any, prefix: Path = (), *, key: Any = None) -> Tree:
        """Takes a tree with graphs in it apart.

        Args:
            tree: containers of objects, Variables, arrays and static values.
            prefix: names that paths start with.
            key: tells plans of the same objects apart.
        """
        with_paths, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=self._is_item)
        flat = [value for _, value in with_paths]
        nodes = [i for i, value in enumerate(flat) if self._is_item(value)]
        plan = plan_of([flat[i] for i in nodes], key)
        items = tuple(NODE if i in set(nodes) else _item(value) for i, value in enumerate(flat))
        holders = tuple(_holder(leaf) for leaf in plan.leaves)
        starts = [*plan.starts, len(plan.leaves)]
        leaves: list[RefLeaf] = []
        paths: list[tuple[int, Path]] = []
        values = plan.read()
        for root, place in enumerate(nodes):
            base = (*prefix, *map(key_part, with_paths[place][0]))
            for i in range(starts[root], starts[root + 1]):
                leaves.append(RefLeaf((*base, *plan.paths[i]), values[i], plan.leaves[i]))
                paths.append((place, plan.paths[i]))
        for place, ((path, value), item) in enumerate(zip(with_paths, items, strict=True)):
            if item is ARRAY:
                leaves.append(RefLeaf((*prefix, *map(key_part, path)), value))
                paths.append((place, ()))
        full = tuple(leaf.path for leaf in leaves)
        structure = RefStructure(treedef, items, plan.graphdef, holders, paths=tuple(paths), full_paths=full)
        return Tree(structure, flat, plan, nodes, leaves)

    def enter(self, call: Call) -> tuple[RefStructure, list[RefLeaf], Tree]:
        """Takes a call apart; see `Boundary`."""
        functions, args, kwargs = call
        tree = self.take_apart((args, dict(kwargs)))
        names = parameter_names(functions[0])
        tree.leaves = [RefLeaf(_named(leaf.path, names), leaf.value, leaf.holder) for leaf in tree.leaves]
        if not self.graph:
            self._refuse_sharing(tree)
        if self.updates:
            check_levels(tree.plan.node(number) for number in tree.plan.by_number)
        return replace(tree.structure, functions=functions), tree.leaves, tree

    def _refuse_sharing(self, tree: Tree) -> None:
        for value in tree.flat:
            if is_graph_node(value):
                check_is_pytree(value, self.function)
        for number, path, root in repeats_of(tree.plan):
            first = next(i for i, n in enumerate(tree.plan.numbers) if n == number)
            raise DuplicateError(
                f"Duplicate {type(tree.plan.node(number)).__name__}: nnx.{self.function} in tree mode (graph=False) "
                "does not support shared references",
                at=[format_path(tree.leaves[first].path), format_path((f"argument {tree.nodes[root]}", *path))],
                fix=ways_out(self.function),
            )

    # ------------------------------------------------------------------ rides

    def rides(
        self,
        prefix: Any,
        call: Call,
        entered: Tree,
        leaves: Sequence[RefLeaf],
        is_ride: Callable[[Any], bool],
        what: str,
    ) -> list[Ride]:
        """The ride of each leaf; one Variable has one ride, however it is reached.

        Raises:
            AxisError: if the prefix does not fit.
            AliasError: if one Variable is reached under different rides, naming every path.
        """
        specs = self.specs(without_functions(prefix), entered, is_ride, what)
        return self.resolve(specs, entered, what)

    def specs(self, prefix: Any, tree: Tree, is_ride: Callable[[Any], bool], what: str) -> list[Any]:
        """The prefix of each item."""

        def stops(node: Any) -> bool:
            return is_ride(node) or isinstance(node, ByFilter | RidesByKind | State | Variable) or self._is_item(node)

        if is_ride(prefix):
            return [prefix] * len(tree.flat)
        treedef = tree.structure.treedef
        try:
            everywhere = jax.tree.broadcast(prefix, treedef.unflatten(range(treedef.num_leaves)), is_leaf=stops)
        except ValueError as error:
            raise AxisError(
                f"{what} does not fit: {error}",
                at=f"{what}={prefix!r}",
                fix="give one ride for a whole argument, or a tree of the argument's own structure",
            ) from None
        return treedef.flatten_up_to(everywhere)

    def resolve(self, specs: Sequence[Any], tree: Tree, what: str) -> list[Ride]:
        plan, rides = tree.plan, []
        finders = [self.finder(specs[place], what, tree.flat[place]) for place in tree.nodes]
        starts = [*plan.starts, len(plan.leaves)]
        for root in range(len(tree.nodes)):
            for i in range(starts[root], starts[root + 1]):
                rides.append(self._ride(finders[root], plan.paths[i], plan.leaves[i], what))
        if plan.repeats:
            self._check_aliases(tree, finders, rides, what)
        plain = zip(specs, tree.structure.items, tree.flat, strict=True)
        return rides + [_plain_ride(spec, value, what) for spec, item, value in plain if item is ARRAY]

    def finder(self, spec: Any, what: str, item: Any = None) -> Callable[[Path, Any], Ride]:
        """From a path inside of an item, and what is there, to its ride, by the prefix of the item."""
        if isinstance(item, Variable) and isinstance(spec, RidesByKind):
            # A Variable that is an argument by itself, or in a State, was chosen by the caller already.
            ride = spec.of_array(item.get_raw_value())
            if ride is not None:
                return lambda path, value: ride
        if isinstance(spec, ByFilter):
            return spec.finder()
        if isinstance(spec, RidesByKind):
            return ByFilter(spec.rides).finder()
        if isinstance(spec, State) or self._is_item(spec):
            by_path = {leaf.path: leaf.value for leaf in self.take_apart({"": spec}).leaves}
            return lambda path, value: by_path[("", *path)]
        return lambda path, value: spec

    def shape_of(self, tree: Any) -> Tree:
        """A tree with its graphs as items, which are not looked into."""
        flat, treedef = jax.tree.flatten(tree, is_leaf=self._is_item)
        nodes = [i for i, value in enumerate(flat) if self._is_item(value)]
        items = tuple(NODE if i in set(nodes) else _item(value) for i, value in enumerate(flat))
        structure = RefStructure(treedef, items, _NOTHING, ())
        return Tree(structure, flat, Plan([]), nodes, [])

    def _ride(self, find: Callable[[Path, Any], Any], path: Path, holder: Any, what: str) -> Ride:
        try:
            return find(path, holder)
        except LookupError:
            raise AxisError(
                f"{what}: no filter matches this {type(holder).__name__}",
                at=format_path(path),
                fix="add a filter for it, or end with `...` for the rest",
            ) from None

    def _check_aliases(self, tree: Tree, finders: Sequence[Any], rides: Sequence[Ride], what: str) -> None:
        plan = tree.plan
        first = {number: i for i, number in enumerate(plan.numbers) if number is not None}
        place_of = {id(leaf): number for leaf, number in zip(plan.leaves, plan.numbers, strict=True)}
        wrong: dict[int, list[str]] = {}
        for number, path, root in repeats_of(plan):
            for below, variable in variables_below(plan.node(number)):
                i = first[place_of[id(variable)]]
                ride = self._ride(finders[root], (*path, *below), variable, what)
                if ride != rides[i]:
                    places = wrong.setdefault(i, [f"{format_path(tree.leaves[i].path)}: {rides[i]!r}"])
                    base = _item_path(tree, tree.nodes[root])
                    places.append(f"{format_path((*base, *path, *below))}: {ride!r}")
        if wrong:
            raise AliasError(
                f"Inconsistent aliasing detected: these Variables are reached under different {what}",
                at=[place for places in wrong.values() for place in places],
                fix="give every path to one Variable the same, or pass the Variable only once",
            )

    # ------------------------------------------------------------------ inside

    def rebuild(self, crossing: Crossing, values: Sequence[Any]) -> tuple[Call, Memory]:
        """The live call, of fresh objects around these values."""
        (args, kwargs), memory = self._build(crossing.structure, values)
        return (crossing.structure.functions, args, kwargs), memory

    def _build(self, structure: RefStructure, values: Sequence[Any]) -> tuple[Any, Memory]:
        count = len(structure.holders)
        leaves: list[Any] = []
        live: list[Any] = []
        for holder, value in zip(structure.holders, values[:count], strict=True):
            variable = None if holder.type is None else holder.type._new(value, holder.metadata)
            live.append(variable)
            leaves.append(value if variable is None else variable)
        index_ref = IndexMap()
        unflattener = Unflattener(structure.graphdef, leaves, index_ref, None, False, True)
        roots: list[Any] = []
        rest = iter(values[count:])
        flat: list[Any] = []
        for item in structure.items:
            if item is NODE:
                roots.append(unflattener.node())
                flat.append(roots[-1])
            else:
                flat.append(next(rest) if item is ARRAY else item.value)
        return structure.treedef.unflatten(flat), Memory(live, index_ref, roots)

    def describe(self, tree: Any) -> Described:
        """What must not change of a tree that is carried."""
        apart = self.take_apart(tree)
        fixed = [((i,), item) for i, item in enumerate(apart.structure.items) if isinstance(item, Fixed)]
        leaves = [(leaf.path, _aval(leaf.value)) for leaf in apart.leaves]
        nodes = [(("identity of", i), Identity(node)) for i, node in enumerate(self._carried_things(apart))]
        return Described((apart.structure.treedef, apart.structure.graphdef), (*leaves, *fixed, *nodes))

    def _carried_things(self, apart: Tree) -> list[Any]:
        """What must stay the same in a carry: Variables, and objects too if updates reach the caller's."""
        if not self.updates:
            return apart.plan.variables
        return [apart.plan.node(number) for number in apart.plan.by_number]

    def describe_outcome(self, outcome: RefOutcome, groups: Groups) -> Described:
        """What must not differ between the outputs of branches."""
        leaves = tuple(
            ((i,), "an argument" if lane == FORWARDED else _aval(groups[lane][place]))
            for i, (lane, place) in enumerate(outcome.sources)
        )
        metadata = tuple((("metadata of Variable", i), Fixed(new)) for i, new in outcome.metadata)
        make = (outcome.treedef, outcome.items, outcome.graphdef, outcome.arguments, outcome.updates)
        return Described(make, (*leaves, *metadata))

    def pack(self, tree: Any) -> tuple[RefStructure, tuple[Any, ...]]:
        """Any tree as a structure and arrays."""
        apart = self.take_apart(tree)
        return apart.structure, tuple(leaf.value for leaf in apart.leaves)

    def unpack(self, structure: RefStructure, leaves: Sequence[Any]) -> Any:
        """The tree again, of fresh objects."""
        return self._build(structure, leaves)[0]

    def places_of_updates(self, outcome: RefOutcome) -> Sequence[tuple[int, int, int]]:
        """(leaf, lane, place) for each leaf of the arguments that an outcome updates."""
        return outcome.updates

    def updated(self, outcome: RefOutcome) -> frozenset[int]:
        """The positions of the arguments' leaves that an outcome updates; all of them if their structure changed."""
        if outcome.arguments is not None:
            return outcome.known
        return frozenset(i for i, _, _ in outcome.updates)

    def update_lanes(self, crossing: Crossing) -> tuple[Ride, ...]:
        """The rides that updates of the arguments can have: those of the arguments."""
        return crossing.lanes

    def leave(
        self, crossing: Crossing, values: Sequence[Any], live: Call, memory: Memory, out: Any, departure: Departure
    ) -> tuple[Groups, RefOutcome]:
        """Takes output and changes apart into lanes."""
        return Leaving(self, crossing, values, live, memory, departure).outcome(out)

    # ------------------------------------------------------------------ outside again

    def hand_over(self, entered: Tree, outcome: RefOutcome, values: Sequence[Any], groups: Groups) -> Any:
        """Writes what changed into the caller's objects, and gives the output."""
        return hand_over(entered.plan, outcome, values, groups)

    def quick_hand_over(self, entered: QuickEntry, outcome: RefOutcome, values: Sequence[Any], groups: Groups) -> Any:
        """The same, for objects that were met before."""
        return entered.hand_over(outcome, values, groups)

    def sparse_call(self, crossing: Crossing, values: Mapping[int, Any]) -> Call:
        """The call's trees as (co)tangents: States with updates, else objects like the arguments."""
        structure: RefStructure = crossing.structure
        if self.updates:
            return ((), *_as_states(structure, values))
        count = len(structure.holders)
        filled = [values.get(i) for i in range(count + structure.items.count(ARRAY))]
        return self.rebuild(replace(crossing, structure=replace(structure, functions=())), filled)[0]

    def read_sparse(self, crossing: Crossing, call: Call) -> list[Any]:
        """For each leaf its value in trees like the arguments (objects, States, arrays), or None."""
        trees = self.take_apart((tuple(call[1]), dict(call[2])))
        given = {leaf.path: leaf.value for leaf in trees.leaves}
        return [given.get(path) for path in crossing.structure.full_paths]

    def sparse_output(self, outcome: RefOutcome, lane: int, values: Sequence[Any]) -> Any:
        """A tree like the output: values at what rode in one lane, and `None` elsewhere."""
        count = outcome.graphdef.num_leaves
        filled = [values[place] if at == lane else None for at, place in outcome.sources]
        return build_output(outcome, filled[:count], filled[count:], IndexMap(), None)

    def read_sparse_output(self, outcome: RefOutcome, lane: int, tree: Any) -> list[Any]:
        """For each leaf of one lane its value in a tree like the output, or None."""
        apart = self.take_apart(tree)
        given = [leaf.value for leaf in apart.leaves]
        return [value for value, (at, _) in zip(given, outcome.sources, strict=True) if at == lane]

    def extractor(self, crossing: Crossing, entered: Tree, call: Call) -> Extract | None:
        """Reads the Variables of the same objects again, as long as their plan is valid."""
        return quick_extractor(self, crossing, entered, call)


_NOTHING: GraphDef[Any] = GraphDef((), (), 0)


def without_functions(prefix: Any) -> Any:
    """The part of a call's prefix that is about the arguments."""
    return prefix[1:] if isinstance(prefix, tuple) and len(prefix) == 3 else prefix


def _item(value: Any) -> Any:
    return ARRAY if is_array(value) or type(value) in NUMBERS else Fixed(value)


def _holder(leaf: Any) -> Holder:
    return Holder(type(leaf), leaf._var_metadata) if isinstance(leaf, Variable) else PLAIN


def _aval(value: Any) -> Any:
    return jax.tree.map(jax.typeof, value) if not is_array(value) else jax.typeof(value)


def _named(path: Path, names: Sequence[str]) -> Path:
    """A path from the call, starting with the argument's name."""
    which, first, *rest = path
    if which == 0:
        first = names[first] if first < len(names) else f"args[{first}]"  # type: ignore[operator]
    return (first, *rest)


def _item_path(tree: Tree, place: int) -> Path:
    for leaf, (item, path) in zip(tree.leaves, tree.structure.paths, strict=True):
        if item == place:
            return leaf.path[: len(leaf.path) - len(path)]
    return (f"argument {place}",)


def repeats_of(plan: Plan) -> Iterator[tuple[int, Path, int]]:
    """What was met again in a plan, as (number, path, root)."""
    for root, (start, end) in enumerate(itertools.pairwise([*plan.repeat_starts, len(plan.repeats)])):
        for number, path in plan.repeats[start:end]:
            yield number, path, root


def _plain_ride(spec: Any, value: Any, what: str) -> Ride:
    if isinstance(spec, RidesByKind):
        ride = spec.of_array(value)
        if ride is not None:
            return ride
        raise AxisError(f"{what}: {spec!r} is for graphs, but was given for an array", fix="give the array one ride")
    return spec


def _as_states(structure: RefStructure, values: Mapping[int, Any]) -> tuple[Any, Any]:
    """(Co)tangents of the arguments: for a graph the State of the leaves that have one."""
    flat: list[Any] = [None] * len(structure.items)
    states: dict[int, list[tuple[Path, Any]]] = {i: [] for i, item in enumerate(structure.items) if item is NODE}
    count = len(structure.holders)
    for i, (item, path) in enumerate(structure.paths):
        if i not in values:
            continue
        if i >= count:
            flat[item] = values[i]
        else:
            holder = structure.holders[i]
            value = values[i] if holder.type is None else holder.type._new(values[i], holder.metadata)
            states[item].append((path, value))
    for item, pairs in states.items():
        flat[item] = pairs[0][1] if len(pairs) == 1 and pairs[0][0] == () else from_flat_state(pairs)
    return structure.treedef.unflatten(flat)
