"""The values boundary: records in, records out.

Nothing is mutated, so there are no updates to carry: a stateful function returns its successors among its outputs. What
this boundary adds to plain pytrees:

- static leaves cross in the structure, in both directions;
- an output leaf that *is* an input leaf (the part of a successor that did not change) does not leave the trace: it is
  handed over from the caller's own arguments, if the two ride alike.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
from weft.core.definitions import REDEFINED, another, same_name
from weft.core.edge import trees
from weft.core.edge.trees import PyTree, TreeDef
from weft.core.errors import StructureError
from weft.core.interpreter.boundary import (
    Arrival,
    Call,
    Crossing,
    Departure,
    Groups,
    OutLanes,
    Place,
    QuickWay,
    parameter_names,
)
from weft.core.interpreter.building import FORWARDED, Builder, make_builder, through_registry
from weft.core.interpreter.extracting import make_extractor
from weft.core.interpreter.hidden import refuse_hidden_tracers
from weft.core.interpreter.prefixes import resolve
from weft.core.interpreter.rides import Read, Ride
from weft.core.memory import Handle, Made
from weft.core.paths import Path, format_path
from weft.core.records.agree import Described, Fixed, describe, iter_kinds, parts_of
from weft.core.records.configuration import Mixed, iter_configuration, opened
from weft.core.records.leaves import Leaf, iter_leaves
from weft.core.records.partition import Placed, Structure, assemble, take_apart
from weft.core.records.statics import Make, Static


class CallOfRecords(Structure):
    """A call of functions of records, without its arrays."""

    @functools.cached_property
    def dynamic_positions(self) -> tuple[int, ...]:
        """Which leaves are arrays."""
        return tuple(i for i in range(len(self.paths)) if i not in self.static_positions)

    def path_of(self, position: int) -> Path:
        """Where a dynamic leaf is; a record that is the function is called `self` there, as in its method."""
        path = self.paths[self.dynamic_positions[position]]
        if path[0] != "<function>":
            return path
        # A method holds its record, as `__self__` or as the first argument of a `Partial`.
        kind, _ = self.treedef.children()[0].children()[0].node_data() or (None, None)
        is_method = kind is jax.tree_util.Partial or path[2] == "__self__"
        return ("self", *path[3 if is_method else 2 :])

    def described(self) -> Described:
        """What a trace is told apart by, beside the types of arrays."""
        # Anything will do in the places of arrays: what is told of here stands in the others.
        skeleton = self.build([jax.ShapeDtypeStruct((), jnp.float32)] * len(self.dynamic_positions))
        # Which function it is, is no argument; a record that is one, is.
        places = [*named_arguments(skeleton), *self.trees_of_functions(skeleton[0])]
        statics = tuple((path, Fixed(value)) for place, one in places for path, value in iter_configuration(one, place))
        nodes = {path: kind for place, one in places for path, kind in iter_kinds(one, place)}
        return Described("arguments", self.make, statics, lambda: nodes)

    def trees_of_functions(self, functions: tuple[Any, ...]) -> list[tuple[Path, PyTree]]:
        """What functions hold that is told of, with the path that it starts with."""
        return [(("self",), function) for function in functions if not isinstance(function, Handle | Made)]

    def meant(self) -> frozenset[Path]:
        """The arguments that the user has said to be static as a whole."""
        skeleton = self.build([None] * len(self.dynamic_positions))
        return frozenset(path for path, one in named_arguments(skeleton) if type(one) is Static)

    def sparse(self, values: Mapping[int, PyTree]) -> Call:
        """The call's trees with values at some leaves, and `None` at all others."""
        leaves: list[PyTree] = [None] * len(self.paths)
        for position, value in values.items():
            leaves[self.dynamic_positions[position]] = value
        return self.treedef.unflatten(leaves)

    def read_sparse(self, call: Call) -> list[PyTree]:
        """For each dynamic leaf its value in a sparse call, or None; `None` stands for a whole subtree too.

        Raises:
            StructureError: if an argument is of another structure.
        """
        functions, arguments, _ = self.treedef.children()
        row = [None] * functions.num_leaves
        row += [leaf for d, tree in zip(arguments.children(), call[1], strict=True) for leaf in flatten_sparse(d, tree)]
        row += [None] * (len(self.paths) - len(row))
        return [row[i] for i in self.dynamic_positions]


@dataclass(frozen=True)
class Outcome:
    """What a function returned, without the arrays.

    Attributes:
        structure: of the output.
        sources: where each dynamic leaf comes from: (lane, place in it), or (FORWARDED, position in the arguments).
        updates: of threaded records; values are not updated.
    """

    structure: Structure
    sources: tuple[tuple[int, int], ...]
    updates: tuple[tuple[int, int, int], ...] = ()
    replaced: ClassVar[frozenset[int]] = frozenset()

    def __hash__(self) -> int:
        return hash(self.sources)

    @property
    def updated(self) -> frozenset[int]:
        """The positions of the leaves that are updated."""
        return frozenset(position for position, _, _ in self.updates)

    @functools.cached_property
    def builder(self) -> Builder:
        """Generated code that builds the output from the arguments' leaves and the lanes that came out."""
        return make_builder(self.structure, self.sources)

    def forwarding(self, untouched: Mapping[Place, int]) -> Outcome:
        """The outcome in which arrays of the output are the arguments' own: the positions of these, by place."""
        if not untouched:
            return self
        return replace(self, sources=tuple((FORWARDED, untouched[s]) if s in untouched else s for s in self.sources))

    def sparse(self, values: Sequence[PyTree]) -> PyTree:
        """A tree like the output: values at what rode in its first lane, and `None` elsewhere."""
        sources, structure = iter(self.sources), self.structure
        places = [(-1, 0) if i in structure.static_positions else next(sources) for i in range(len(structure.paths))]
        return structure.treedef.unflatten([values[place] if lane == 0 else None for lane, place in places])

    def read_sparse(self, tree: PyTree) -> list[PyTree]:
        """For each leaf of the first lane its value in a tree like the output, or None.

        Raises:
            StructureError: if the tree is not of the output's structure.
        """
        structure = self.structure
        row = flatten_sparse(structure.treedef, tree)
        dynamic = [value for i, value in enumerate(row) if i not in structure.static_positions]
        return [value for value, (lane, _) in zip(dynamic, self.sources, strict=True) if lane == 0]


class Values:
    """The boundary of records. It has no state; `VALUES` is the one instance."""

    name = "values"
    layer = "weft"
    has_updates = False
    has_identity = False
    restructures = False
    typed = True
    shares = True

    def __reduce__(self) -> str:
        return "VALUES"

    def enter(self, call: Call) -> tuple[CallOfRecords, list[Leaf], Any]:
        """Takes a call apart: its structure and its dynamic leaves, whose paths start at the parameter's name."""
        fields: list[object] = []
        leaves = list(iter_leaves(call[0], ("<function>",), fields=fields))
        for path, argument in named_arguments(call):
            leaves += iter_leaves(argument, path, fields=fields)
        structure, dynamic = assemble(CallOfRecords, Make(trees.structure(call), tuple(fields)), leaves)
        return structure, dynamic, structure

    def may_update(self, crossing: Crossing[CallOfRecords]) -> bool:
        """No record can be updated."""
        return False

    def rides(
        self, prefix: Arrival, call: Call, entered: Any, leaves: Sequence[Leaf], read: Read, what: str
    ) -> list[Ride]:
        """The ride of each leaf, by a prefix of the call."""
        return resolve(prefix, call, leaves, read, what=what, statics=entered.static_positions, depth=2)

    def rebuild(self, crossing: Crossing[CallOfRecords], values: Sequence[PyTree]) -> tuple[Call, Any]:
        """The live call, with the values that the transform gives."""
        return crossing.structure.build(values), None

    def describe(self, tree: PyTree, root: str) -> Described:
        """What must not change of a tree that is carried."""
        return describe(tree, root)

    def describe_outcome(self, crossing: Crossing[CallOfRecords], outcome: Outcome, groups: Groups) -> Described:
        """What must not differ between the outputs of branches."""
        structure, sources = outcome.structure, iter(outcome.sources)
        static = {position: Fixed(value) for position, _, value in structure.statics}
        leaves: list[tuple[Path, object]] = []
        for position, path in enumerate(structure.paths):
            if position in static:
                leaves.append((("output", *path), static[position]))
            else:
                lane, place = next(sources)
                leaves.append((("output", *path), jax.typeof(groups[lane][place])))
        parts = functools.partial(parts_of, structure.treedef, ("output",))
        return Described("output", structure.make, tuple(leaves), parts)

    def pack(self, tree: PyTree) -> tuple[Structure, tuple[PyTree, ...]]:
        """Any tree as a structure and arrays."""
        structure, leaves = take_apart(tree)
        return structure, tuple(leaf.value for leaf in leaves)

    def leave(
        self,
        crossing: Crossing[CallOfRecords],
        values: Sequence[PyTree],
        live: Call,
        memory: Any,
        out: PyTree,
        departure: Departure,
    ) -> tuple[Groups, Groups, Outcome]:
        """Takes an output apart into lanes, without the leaves that can be forwarded."""
        lanes = OutLanes(departure)
        outcome = self.outcome(crossing, values, out, departure, lanes)
        return *lanes.finished(), outcome

    def outcome(
        self,
        crossing: Crossing[CallOfRecords],
        values: Sequence[PyTree],
        out: PyTree,
        departure: Departure,
        lanes: OutLanes,
    ) -> Outcome:
        """What was returned, whose arrays are put into lanes unless they can be forwarded."""
        structure, leaves = take_apart(out)
        if any(isinstance(leaf.value, jax.ShapeDtypeStruct) for leaf in leaves):
            # A function may return what `eval_shape` gave it: as static values these cross in the structure.
            out = _with_abstract_as_static(out)
            structure, leaves = take_apart(out)
        structure = replace(structure, statics=tuple(map(_unwrapped, structure.statics)))
        paths = structure.paths
        hidden = ((format_path(paths[i], "output"), value) for i, _, value in structure.statics)
        refuse_hidden_tracers(hidden, self.layer)
        statics = structure.static_positions
        rides = resolve(departure.prefix, out, leaves, departure.read, what=departure.option, statics=statics)
        # By identity, which decides it while tracing: the numbers are not there to be compared.
        inputs = {id(value): i for i, value in enumerate(values)}
        sources: list[tuple[int, int]] = []
        for leaf, ride in zip(leaves, rides, strict=True):
            origin = inputs.get(id(leaf.value))
            # On another ride it is another array outside: what came in on axis 0 and leaves on axis 1 is transposed.
            if origin is not None and ride.forwards and ride.is_like(crossing.rides[origin]):
                sources.append((FORWARDED, origin))
            else:
                sources.append(lanes.output(ride, leaf.value, lambda leaf=leaf: format_path(leaf.path, "output")))
        return Outcome(structure, tuple(sources))

    def hand_over(self, entered: Any, outcome: Outcome, values: Sequence[PyTree], groups: Groups) -> PyTree:
        """The output, from what came out of the transform and what was forwarded."""
        return through_registry(outcome.structure, outcome.sources, values, groups)

    def quick_way(self, crossing: Crossing[CallOfRecords], entered: Any, call: Call) -> QuickWay | None:
        """Generated code that takes calls of this make apart, and builds what comes out."""
        extract = make_extractor(crossing.structure, crossing.places, len(crossing.lanes), crossing.repeats)
        return None if extract is None else QuickWay(extract, _build)


def _build(records: Sequence[PyTree] | None, outcome: Outcome, values: Sequence[PyTree], groups: Groups) -> PyTree:
    """What a call hands over, by generated code; `records` are the arguments', if they may be handed back."""
    return outcome.builder(values, groups, records)


class _Abstract:
    """A `ShapeDtypeStruct` that a function returned: no array, of which there would have to be a value."""

    __slots__ = ("value",)

    def __init__(self, value: jax.ShapeDtypeStruct):
        self.value = value


def _with_abstract_as_static(out: PyTree) -> PyTree:
    leaves, definition = trees.flatten(out)
    return definition.unflatten(
        [_Abstract(leaf) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf for leaf in leaves]
    )


def _unwrapped(static: Placed) -> Placed:
    position, _, value = static
    return (position, jax.ShapeDtypeStruct, value.value) if isinstance(value, _Abstract) else static


def named_arguments(call: Call) -> list[tuple[Path, PyTree]]:
    """A call's arguments, each with the path that its leaves' paths start with."""
    functions, args, kwargs = call
    names = parameter_names(functions[0])
    by_position = [((names[i],) if i < len(names) else ("args", i), argument) for i, argument in enumerate(args)]
    return [*by_position, *(((name,), kwargs[name]) for name in sorted(kwargs))]


def flatten_sparse(definition: TreeDef, tree: PyTree) -> list[PyTree]:
    """The leaves of a tree of this definition, in which `None` may stand for any subtree.

    Raises:
        StructureError: if it is of another structure, saying where.
    """
    if tree is None:
        return [None] * definition.num_leaves
    if definition.num_leaves == 1 and definition.num_nodes == 1:
        return [tree]
    node_type, data = cast(Any, definition.node_data() or (type(None), None))
    if node_type is Static:
        return []  # configuration has no tangent, whatever stands there
    # How a record keeps a container depends on what is in it; the user knows the container alone.
    tree = opened(tree)
    if node_type is Mixed:
        try:
            parts = data.flatten_up_to(tree)
        except ValueError as error:
            raise _misfit("a container like that of the record", tree) from error
        pairs = zip(definition.children(), parts, strict=True)
        return [leaf for child, part in pairs for leaf in flatten_sparse(child, part)]
    level = trees.children_of(tree)
    children = None if level is None else tuple(level[0])
    made = cast("type[Any]", type(tree))
    same_keys = not isinstance(tree, dict) or sorted(cast("dict[Any, Any]", tree)) == data
    if same_name(node_type, made):
        raise StructureError(
            f"a tangent or cotangent must be made like what it belongs to: expected {node_type.__name__}, "
            f"got {another(made)}",
            fix=REDEFINED,
        )
    if children is None or made is not node_type or len(children) != len(definition.children()) or not same_keys:
        raise _misfit(f"{node_type.__name__} with {len(definition.children())} children", tree)
    pairs = zip(definition.children(), children, strict=True)
    return [leaf for child, subtree in pairs for leaf in flatten_sparse(child, subtree)]


def _misfit(expected: str, tree: PyTree) -> StructureError:
    return StructureError(
        f"a tangent or cotangent must be made like what it belongs to: expected {expected}, got {tree!r:.200}",
        fix="pass a tree of the same structure, None wherever it is zero",
    )


VALUES = Values()
