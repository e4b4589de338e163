"""The values boundary: records in, records out.

Nothing is mutated, so there are no updates to carry: a stateful function returns its successors among its outputs. What
this boundary adds to plain pytrees:

- static leaves cross in the structure, in both directions;
- an output leaf that *is* an input leaf (a leaf of a successor that did not change) does not leave the trace: it is
  forwarded from the caller's own arguments, if the two have the same ride.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
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
from weft.core.interpreter.building import FORWARDED, Builder, as_array, make_builder
from weft.core.interpreter.extracting import make_extractor
from weft.core.interpreter.hidden import refuse_hidden_tracers
from weft.core.interpreter.prefixes import depends_on_leaves, resolve
from weft.core.interpreter.rides import Read, Ride
from weft.core.memory import Handle, TransformedHandle
from weft.core.paths import Path, format_path
from weft.core.records.agree import Fixed, TreeDescription, describe, iter_kinds, parts_of
from weft.core.records.configuration import MixedContainer, iter_configuration, opened
from weft.core.records.leaves import NUMBERS, Leaf, array_types, iter_leaves, repeats_of
from weft.core.records.partition import Structure, assemble, take_apart
from weft.core.records.storage import Make, Static


class CallOfRecords(Structure):
    """The structure of a call, whose arguments are pytrees and whose functions may be records."""

    @functools.cached_property
    def dynamic_positions(self) -> tuple[int, ...]:
        """Which leaves are arrays."""
        return tuple(i for i in range(len(self.paths)) if i not in self.static_positions)

    def path_of(self, position: int) -> Path:
        """The path of a dynamic leaf; the record whose method is the function is called `self`, as in its method."""
        path = self.paths[self.dynamic_positions[position]]
        if path[0] != "<function>":
            return path
        # The path within a method starts with `__self__`, or with `.args[0]`: it is left out.
        start = 4 if path[2:4] == ("args", 0) else 3 if path[2] == "__self__" else 2
        return ("self", *path[start:])

    def described(self) -> TreeDescription:
        """What a trace is keyed on except the avals of arrays."""
        # The call is built with placeholders for its arrays, since only the static parts are described.
        skeleton = self.build([jax.ShapeDtypeStruct((), jnp.float32)] * len(self.dynamic_positions))
        # A function is no argument to the user, but a record that is called is (`self`).
        roots = [*named_arguments(skeleton), *self.trees_of_functions(skeleton[0])]
        statics = tuple((path, Fixed(value)) for root, tree in roots for path, value in iter_configuration(tree, root))
        nodes = {path: kind for root, tree in roots for path, kind in iter_kinds(tree, root)}
        return TreeDescription("arguments", self.make, statics, lambda: nodes)

    def trees_of_functions(self, functions: tuple[Any, ...]) -> list[tuple[Path, PyTree]]:
        """The records that functions hold, each with the path that it is described under."""
        return [(("self",), function) for function in functions if not isinstance(function, Handle | TransformedHandle)]

    def meant(self) -> frozenset[Path]:
        """The paths of the arguments that the user declared static, with `static_argnums` or `static_argnames`."""
        skeleton = self.build([None] * len(self.dynamic_positions))
        return frozenset(path for path, argument in named_arguments(skeleton) if type(argument) is Static)

    def sparse(self, values: Mapping[int, PyTree]) -> Call:
        """The call's trees with values at some leaves, and `None` at all others."""
        return self.without_statics([values.get(i) for i in range(len(self.dynamic_positions))])

    def read_sparse(self, call: Call) -> list[PyTree]:
        """For each dynamic leaf its value in a sparse call, or None; `None` stands for a whole subtree too.

        Raises:
            StructureError: if the structure of an argument differs.
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
        structure: the structure of the output.
        sources: where each dynamic leaf comes from: (lane, place in it), or (FORWARDED, position in the arguments).
        updates: the updated leaves of threaded records, as in `boundary.Outcome`; there are no other updates.
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
        return make_builder(self.structure, self.sources) or self.build

    def build(self, values: Sequence[PyTree], groups: Groups, records: object = None) -> PyTree:
        """Builds the same output as the generated code does, through JAX's pytree registry."""
        return self.structure.build(
            [as_array(values[place]) if lane == FORWARDED else groups[lane][place] for lane, place in self.sources]
        )

    def forwarding(self, untouched: Mapping[Place, int]) -> Outcome:
        """This outcome with some outputs forwarded: `untouched` maps a place to the position of the argument."""
        if not untouched:
            return self
        return replace(self, sources=tuple((FORWARDED, untouched[s]) if s in untouched else s for s in self.sources))

    def sparse(self, values: Sequence[PyTree]) -> PyTree:
        """A tree like the output: values at the leaves of its first lane, and `None` elsewhere."""
        return self.structure.without_statics([values[place] if lane == 0 else None for lane, place in self.sources])

    def read_sparse(self, tree: PyTree) -> list[PyTree]:
        """For each leaf of the first lane its value in a tree like the output, or None.

        Raises:
            StructureError: if the structure of the tree is not that of the output.
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
    structure: type[CallOfRecords] = CallOfRecords

    def __reduce__(self) -> str:
        return "VALUES"

    def enter(self, call: Call, known: Any = None) -> tuple[CallOfRecords, list[Leaf], Any]:
        """Flattens a call: its structure, and its dynamic leaves, whose paths start with the parameter's name."""
        fields: list[object] = []
        leaves = [leaf for path, tree in self.roots(call) for leaf in iter_leaves(tree, path, fields=fields)]
        structure, dynamic = assemble(self.structure, Make(trees.structure(call), tuple(fields)), leaves)
        return structure, dynamic, structure

    def roots(self, call: Call) -> list[tuple[Path, PyTree]]:
        """The trees of a call, each with the path of its root; in the order of the treedef of the call."""
        return [(("<function>",), call[0]), *named_arguments(call)]

    def recognise(self, call: Call) -> tuple[Hashable, Sequence[PyTree], Any] | None:
        """The key of a call by its treedef, its static leaves, and the shapes and dtypes of the others."""
        return recognised(call, None)

    def may_update(self, crossing: Crossing[CallOfRecords]) -> bool:
        """False: records are immutable."""
        return False

    def rides(
        self, prefix: Arrival, call: Call, entered: Any, leaves: Sequence[Leaf], read: Read, option: str
    ) -> list[Ride]:
        """The ride of each leaf, by a prefix of the call."""
        return resolve(prefix, call, leaves, read, option=option, statics=entered.static_positions, depth=2)

    def rebuild(self, crossing: Crossing[CallOfRecords], values: Sequence[PyTree]) -> tuple[Call, Any]:
        """Builds the live call from the values inside the trace."""
        return crossing.structure.build(values), None

    def describe(self, tree: PyTree, root: str) -> TreeDescription:
        """Describes what must stay the same in a carry: treedef, avals, statics."""
        return describe(tree, root)

    def describe_outcome(self, crossing: Crossing[CallOfRecords], outcome: Outcome, types: Groups) -> TreeDescription:
        """Describes what must be the same in the outputs of all branches."""
        structure = outcome.structure
        described = structure.place([types[lane][place] for lane, place in outcome.sources])
        for position, _, value in structure.statics:
            described[position] = Fixed(value)
        paths = [("output", *path) for path in structure.paths]
        parts = functools.partial(parts_of, structure.treedef, ("output",))
        return TreeDescription("output", structure.make, tuple(zip(paths, described, strict=True)), parts)

    def pack(self, tree: PyTree) -> tuple[Structure, tuple[PyTree, ...]]:
        """Flattens any tree into a structure and arrays."""
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
        """Flattens the output into lanes, without the leaves that can be forwarded."""
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
        """The outcome of an output, whose arrays this puts into lanes unless they can be forwarded."""
        key, arrays, _ = recognised(out, None) or (None, (), None)
        known = departure.known.find(key)
        if known is not None and jax.ShapeDtypeStruct not in map(type, arrays):
            paths, rides, structure = known
        else:
            structure, leaves, rides = self._described(out, departure)
            paths, own = [leaf.path for leaf in leaves], [leaf.value for leaf in leaves]
            # As in `Interpreted._described`: only if the key tells all that the description does.
            tells_all = key is not None and [*map(id, arrays)] == [*map(id, own)] and not structure.fields
            if tells_all and not depends_on_leaves(departure.prefix, departure.read, on_values=True):
                departure.known.add(key, (paths, rides, structure))
            arrays = own
        # An output that is the same tracer as an argument did not change; values cannot be compared while tracing.
        inputs = {id(value): i for i, value in enumerate(values)}
        sources: list[tuple[int, int]] = []
        for path, value, ride in zip(paths, arrays, rides, strict=True):
            origin = inputs.get(id(value))
            # Not if the rides differ: an argument that enters on axis 0 and leaves on axis 1 is another array outside
            # of the transform, a transposed one.
            if origin is not None and ride.forwards and ride.is_like(crossing.rides[origin]):
                sources.append((FORWARDED, origin))
            else:
                sources.append(lanes.output(ride, value, lambda path=path: format_path(path, "output")))
        return Outcome(structure, tuple(sources))

    def _described(self, out: PyTree, departure: Departure) -> tuple[Structure, list[Leaf], list[Ride]]:
        """The structure of an output, and its dynamic leaves with their rides."""
        fields: list[object] = []
        # A function may return a ShapeDtypeStruct that `eval_shape` gave it. It has no value that a lane could hold, so
        # it crosses in the structure, as static values do.
        leaves = [
            replace(leaf, dynamic=False) if isinstance(leaf.value, jax.ShapeDtypeStruct) else leaf
            for leaf in iter_leaves(out, fields=fields)
        ]
        structure, leaves = assemble(Structure, Make(trees.structure(out), tuple(fields)), leaves)
        if structure.statics:
            hidden = ((format_path(structure.paths[i], "output"), value) for i, _, value in structure.statics)
            refuse_hidden_tracers(hidden, self.layer)
        # Rides are given to dynamic leaves only: a prefix such as `out_axes=0` also covers a string in the output.
        statics = structure.static_positions
        rides = resolve(departure.prefix, out, leaves, departure.read, option=departure.option, statics=statics)
        return structure, leaves, rides

    def hand_over(self, entered: Any, outcome: Outcome, values: Sequence[PyTree], groups: Groups) -> PyTree:
        """Builds the output from the lanes that came out of the transform and from forwarded arguments."""
        return outcome.build(values, groups)

    def quick_way(self, crossing: Crossing[CallOfRecords], entered: Any, call: Call) -> QuickWay | None:
        """Generated code for calls of this structure."""
        extract = make_extractor(crossing.structure, crossing.places, len(crossing.lanes), crossing.repeats)
        return None if extract is None else QuickWay(extract, _build)


def _build(records: Sequence[PyTree] | None, outcome: Outcome, values: Sequence[PyTree], groups: Groups) -> PyTree:
    """`hand_over` by generated code; `records` are the arguments' records, if they may be handed back."""
    return outcome.builder(values, groups, records)


def recognised(call: PyTree, entered: Any) -> tuple[Hashable, Sequence[PyTree], Any] | None:
    """`Values.recognise` of a call, with what `hand_over` needs."""
    try:
        leaves, treedef = trees.flatten(call)
    except (TypeError, ValueError):
        return None  # a dict with keys that cannot be sorted, for which `enter` raises an error that names it
    told = told_by(leaves)
    return None if told is None else ((treedef, told[0], repeats_of(told[1])), told[1], entered)


def told_by(leaves: Sequence[PyTree]) -> tuple[Hashable, list[PyTree]] | None:
    """What a recognised call has to have in common with the earlier one beside its treedef; also the values of the
    leaves that are traced. None if one of these has no shape."""
    arrays = array_types()
    try:
        key: tuple[Any, ...] = tuple([
            (leaf.shape, leaf.dtype) if kind in arrays else kind if kind in NUMBERS else (kind, leaf)
            for kind, leaf in zip(cast("list[Any]", [*map(type, leaves)]), leaves, strict=True)
        ])  # fmt: skip
    except AttributeError:
        return None
    return key, [leaf for leaf in leaves if type(leaf) in arrays or type(leaf) in NUMBERS]


def named_arguments(call: Call) -> list[tuple[Path, PyTree]]:
    """The arguments of a call, each with the path of its root."""
    functions, args, kwargs = call
    names = parameter_names(functions[0])
    by_position = [((names[i],) if i < len(names) else ("args", i), argument) for i, argument in enumerate(args)]
    return [*by_position, *(((name,), kwargs[name]) for name in sorted(kwargs))]


def flatten_sparse(definition: TreeDef, tree: PyTree) -> list[PyTree]:
    """The leaves of a tree with this treedef, in which `None` may stand for any subtree.

    Raises:
        StructureError: if the tree's structure differs, saying where.
    """
    if tree is None:
        return [None] * definition.num_leaves
    if definition.num_leaves == 1 and definition.num_nodes == 1:
        return [tree]
    node_type, data = cast(Any, definition.node_data() or (type(None), None))
    if node_type is Static:
        return []  # configuration has no tangent, whatever the user passed for it
    # A record wraps a container in its fields, and how it does depends on the container's items. The user passes a
    # plain container as the tangent, so both are compared unwrapped.
    tree = opened(tree)
    inner = definition.children()
    if node_type is MixedContainer:
        try:
            parts = data.flatten_up_to(tree)
        except ValueError as error:
            raise _misfit("a container like that of the record", tree) from error
    else:
        parts = _parts_like(node_type, data, len(inner), tree)
    return [leaf for child, part in zip(inner, parts, strict=True) for leaf in flatten_sparse(child, part)]


def _parts_like(node_type: type[Any], data: Any, count: int, tree: PyTree) -> Sequence[PyTree]:
    """The children of a node, which must be of this type, with these keys if it is a dict, and as many children."""
    tree_type = cast("type[Any]", type(tree))
    if same_name(node_type, tree_type):
        raise StructureError(
            f"a tangent or cotangent must have the structure of its value: expected {node_type.__name__}, "
            f"got {another(tree_type)}",
            fix=REDEFINED,
        )
    children = list((trees.children_of(tree) or ((),))[0])
    has_keys = not isinstance(tree, dict) or sorted(cast("dict[Any, Any]", tree)) == data
    if tree_type is not node_type or len(children) != count or not has_keys:
        raise _misfit(f"{node_type.__name__} with {count} children", tree)
    return children


def _misfit(expected: str, tree: PyTree) -> StructureError:
    return StructureError(
        f"a tangent or cotangent must have the structure of its value: expected {expected}, got {tree!r:.200}",
        fix="pass a tree of the same structure, None wherever it is zero",
    )


VALUES = Values()
