"""Describes graphs path by path, so that an error can name every difference between two structures.

Two structures are compared with `==` first, which is quick. Only if they differ is each read into a `StructureTable`, a
table from path to a few words, and the tables are compared.

>>> import jax.numpy as jnp
>>> from weft import nnx
>>> picture(nnx.graphdef(nnx.Dict(w=nnx.Param(jnp.ones(2)), n=1)), [("m",)]).parts[("m", "w")].text
'Param'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from weft.core.edge.trees import key_part
from weft.core.interpreter.boundary import Groups
from weft.core.interpreter.retraces import abstract
from weft.core.interpreter.values import FORWARDED
from weft.core.paths import Path, format_path
from weft.core.records.agree import Fixed, TreeDescription
from weft.core.records.configuration import iter_configuration
from weft.core.records.storage import Make
from weft.nnx.crossing.flattening import ARRAY, NODE, RefStructure, Tree, named
from weft.nnx.crossing.outcomes import RefOutcome
from weft.nnx.graphs.definitions import ArrayRefDef, GraphDef, LeafAttr, NodeDef, NodeRef, Static, VariableDef

# Stands in for the value of an array that a function returned unchanged, so that two branches that do so agree.
AS_GIVEN = "an argument"


@dataclass(frozen=True)
class TableEntry:
    """An entry of a `StructureTable`: what a structure has at a path.

    Attributes:
        text: how an error names it.
        value: what must be equal too, although no text shows it: the object's identity, or a static value.
    """

    text: str
    value: Any = None

    def __str__(self) -> str:
        return self.text


class Identity(Fixed):
    """Compares equal to the same object alone; wraps the objects of a carry, which a loop must not exchange."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclass
class StructureTable:
    """A structure as a table from each path to its entry (a Variable, an object, an array, or a static value).

    Attributes:
        parts: objects, containers, Variables and their metadata, arrays and static values, by path.
        leaves: the path of each leaf, in order.
        things: for each number of the graph how a second path to that node is described, and a Variable's metadata.
    """

    parts: dict[Path, TableEntry] = field(default_factory=dict[Path, TableEntry])
    leaves: list[Path] = field(default_factory=list[Path])
    things: dict[int, tuple[str, Mapping[str, Any]]] = field(default_factory=dict[int, tuple[str, Mapping[str, Any]]])


def picture(
    graphdef: GraphDef[Any],
    roots: Sequence[Path],
    *,
    earlier: StructureTable | None = None,
    met: StructureTable | None = None,
    leaves: Sequence[Any] = (),
    identities: Mapping[Any, Any] | None = None,
) -> StructureTable:
    """Reads a graph's structure into a `StructureTable`.

    Args:
        graphdef: the structure of several graphs, in order.
        roots: the path of each graph.
        earlier: the picture of the structure that the outer indexes in `graphdef` refer to; a node of it is described
            by its path there.
        met: the picture of a structure whose numbering `graphdef` continues.
        leaves: the abstract values of the leaves, to describe new Variables and arrays.
        identities: by number, the value that must be equal for a node (see `TableEntry.value`).
    """
    reader = _Reader(
        graphdef, StructureTable(things=dict(met.things) if met else {}), earlier, leaves, identities or {}
    )
    for root in roots:
        reader.node(root)
    return reader.picture


class _Reader:
    def __init__(
        self,
        graphdef: GraphDef[Any],
        into: StructureTable,
        earlier: StructureTable | None,
        leaves: Sequence[Any],
        identities: Mapping[Any, Any],
    ):
        self._nodes, self._attributes = iter(graphdef.nodes), iter(graphdef.attributes)
        self.picture = into
        self._earlier, self._values, self._identities = earlier, leaves, identities

    def node(self, path: Path) -> None:
        definition = next(self._nodes)
        number, parts, things = definition.index, self.picture.parts, self.picture.things
        # A second path is described by the first one, so that a change in sharing alone shows as a difference too.
        again = isinstance(definition, NodeRef)
        if again:
            text, metadata = things.get(definition.index, ("an argument", {}))
        else:
            text = self._named(definition)
            metadata = definition.metadata if isinstance(definition, VariableDef) else {}
            if number is not None:
                text_elsewhere = text if self._earlier else f"the {text} at {format_path(path)}"
                things[number] = (text_elsewhere, metadata)
        parts[path] = TableEntry(text, self._identities.get(number))
        parts.update(_metadata(path, metadata))
        if isinstance(definition, NodeDef):
            self._children(definition, path)
        elif not again and not (isinstance(definition, VariableDef) and isinstance(definition.array_refdef, NodeRef)):
            self.picture.leaves.append(path)

    def _named(self, definition: Any) -> str:
        name = "Ref" if isinstance(definition, ArrayRefDef) else definition.type.__name__
        if self._earlier is None or definition.index is None:
            return name
        if definition.outer_index is not None:
            text, _ = self._earlier.things[definition.outer_index]
            return text
        return f"a new {name}" if isinstance(definition, NodeDef) else f"a new {name} of {_text(self._next_value())}"

    def _children(self, definition: NodeDef[Any], path: Path) -> None:
        for _ in range(definition.num_attributes):
            key, mark = next(self._attributes)
            if isinstance(mark, Static):
                self.picture.parts[*path, key] = TableEntry(str(Fixed(mark.value)), mark)
            elif isinstance(mark, LeafAttr):
                self.picture.parts[*path, key] = TableEntry(self._array())
                self.picture.leaves.append((*path, key))
            else:
                self.node((*path, key))

    def _array(self) -> str:
        if self._earlier is None:
            return "array"
        value = self._next_value()
        return "an array as given" if value is AS_GIVEN else f"a new array {_text(value)}"

    def _next_value(self) -> Any:
        i = len(self.picture.leaves)
        return self._values[i] if i < len(self._values) else AS_GIVEN


def describe_tree(flattened: Tree, fixed_nodes: Sequence[Any], root: str) -> TreeDescription:
    """Describes the parts of a carry that a loop must not change: treedef, graph structure, shapes, identities.

    Args:
        flattened: the carried tree.
        fixed_nodes: the objects and Variables in it that each iteration must return, and no others in their places.
        root: how an error names the tree.
    """
    structure, same = flattened.structure, {id(node) for node in fixed_nodes}
    numbered = ((number, flattened.plan.node(number)) for number in flattened.plan.by_number)
    identities = {number: Identity(node) for number, node in numbered if id(node) in same}
    paths = [(root, *base) for base in flattened.bases]
    return TreeDescription(
        root,
        Make(structure.treedef, (structure.graphdef, *identities.values())),
        (*(((root, *leaf.path), abstract(leaf.value)) for leaf in flattened.leaves), *_statics(structure.items, paths)),
        lambda: picture(structure.graphdef, _paths_of(NODE, structure.items, paths), identities=identities).parts,
    )


def describe_arguments(structure: RefStructure, names: Sequence[str]) -> TreeDescription:
    """Describes the static part of a cache key, for the report of why a call was traced again."""
    # Any placeholder serves for arrays and objects: only the configuration of plain containers and records is read.
    skeleton = structure.treedef.unflatten([jax.ShapeDtypeStruct((), "float32")] * len(structure.items))
    whole = [(named(path, names), value) for path, value in iter_configuration(skeleton)]
    paths = [named(path, names) for path in item_paths(structure.treedef)]
    parts = picture(structure.graphdef, _paths_of(NODE, structure.items, paths)).parts
    attributes = [(path, part.value.value) for path, part in parts.items() if isinstance(part.value, Static)]
    return TreeDescription(
        "arguments",
        Make(structure.treedef, (structure.graphdef, structure.items)),
        (*_statics(structure.items, paths), *((path, Fixed(value)) for path, value in (*whole, *attributes))),
        lambda: {path: part for path, part in parts.items() if not isinstance(part.value, Static)},
    )


def describe_outcome(
    structure: RefStructure, names: Sequence[str], outcome: RefOutcome, types: Groups
) -> TreeDescription:
    """Describes the parts that all branches of a `cond` must have in common: outputs, and effects on the arguments.

    Args:
        structure: of the arguments, which are the same for all branches.
        names: the names of the arguments.
        outcome: what this branch returned, and did to its arguments.
        types: the avals in the lanes that this branch returned.
    """
    paths = item_paths(outcome.treedef, "output")
    roots = _paths_of(NODE, outcome.items, paths)
    returned = [_value(source, types) for source in outcome.sources]
    leaves = [*picture(outcome.graphdef, roots).leaves, *_paths_of(ARRAY, outcome.items, paths)]
    full = [named(path, names) for path in structure.full_paths]
    updated = [(full[i], _value(source, types)) for i, *source in outcome.updates]
    places = [named(path, names) for path in item_paths(structure.treedef)]
    argument_roots = _paths_of(NODE, structure.items, places)
    new_values: list[Any] = []
    if outcome.arguments is not None:
        new_values = [_value(source, types) for source in outcome.arguments[1]]
        now = zip(picture(outcome.arguments[0], argument_roots).leaves, new_values, strict=True)
        updated += [(path, value) for path, value in now if value is not AS_GIVEN]

    def parts() -> Mapping[Path, TableEntry]:
        before = picture(structure.graphdef, argument_roots)
        if outcome.arguments is not None:
            after = picture(outcome.arguments[0], argument_roots, earlier=before, leaves=new_values)
        else:
            after = picture(structure.graphdef.with_same_outer_index(), argument_roots, earlier=before)
            for i, metadata in outcome.metadata:
                after.parts.update(_metadata(full[i], metadata))
        output = picture(outcome.graphdef, roots, earlier=before, met=after, leaves=returned)
        return {**after.parts, **output.parts}

    # Which branch runs is known only on the device, so one outcome must tell what is written after any of them.
    effects = (outcome.arguments, outcome.updates, outcome.metadata)
    return TreeDescription(
        "output",
        Make(outcome.treedef, (outcome.items, outcome.graphdef, *effects)),
        (*zip(leaves, returned, strict=True), *_statics(outcome.items, paths), *updated),
        parts,
    )


def _value(source: Sequence[int], types: Groups) -> Any:
    lane, place = source
    return AS_GIVEN if lane == FORWARDED else types[lane][place]


def _text(value: Any) -> str:
    return str(value).lstrip("~")


def _metadata(path: Path, metadata: Mapping[str, Any]) -> dict[Path, TableEntry]:
    return {(*path, key): TableEntry(repr(value)) for key, value in metadata.items()}


def item_paths(treedef: Any, *root: str) -> list[Path]:
    """The path of each leaf of a treedef."""
    items, _ = jax.tree_util.tree_flatten_with_path(treedef.unflatten(range(treedef.num_leaves)))
    return [(*root, *map(key_part, path)) for path, _ in items]


def _paths_of(mark: Any, items: Sequence[Any], paths: Sequence[Path]) -> list[Path]:
    return [path for item, path in zip(items, paths, strict=True) if item is mark]


def _statics(items: Sequence[Any], paths: Sequence[Path]) -> list[tuple[Path, Any]]:
    return [(path, item) for item, path in zip(items, paths, strict=True) if isinstance(item, Fixed)]
