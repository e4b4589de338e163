"""Graphs in words: what is at each path, so that two structures can be compared and every difference be named.

Structures are compared as they are, which is quick; only where they differ are they read again for words.

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
from weft.core.interpreter.boundary import Groups
from weft.core.interpreter.retraces import abstract
from weft.core.interpreter.values import FORWARDED
from weft.core.paths import Path, format_path, key_part
from weft.core.records.agree import Described, Fixed
from weft.core.records.configuration import iter_configuration
from weft.core.records.statics import Make
from weft.nnx.crossing.apart import ARRAY, NODE, RefStructure, Tree, named
from weft.nnx.crossing.outcomes import RefOutcome
from weft.nnx.graphs.definitions import ArrayRefDef, GraphDef, LeafAttr, NodeDef, NodeRef, Static, VariableDef

# In place of the value of an array that leaves as it came.
AS_GIVEN = "an argument"


@dataclass(frozen=True)
class Part:
    """What is at a path.

    Attributes:
        text: what it is called.
        value: what must be equal besides, such as its identity.
    """

    text: str
    value: Any = None

    def __str__(self) -> str:
        return self.text


class Identity(Fixed):
    """Something that must stay the same object."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclass
class Picture:
    """What a structure says of each path.

    Attributes:
        parts: objects, containers, Variables and their metadata, arrays and static values, by path.
        leaves: the path of each leaf, in order.
        things: by number, what an object or Variable is called wherever it is met again, and a Variable's metadata.
    """

    parts: dict[Path, Part] = field(default_factory=dict[Path, Part])
    leaves: list[Path] = field(default_factory=list[Path])
    things: dict[int, tuple[str, Mapping[str, Any]]] = field(default_factory=dict[int, tuple[str, Mapping[str, Any]]])


def picture(
    graphdef: GraphDef[Any],
    roots: Sequence[Path],
    *,
    earlier: Picture | None = None,
    met: Picture | None = None,
    leaves: Sequence[Any] = (),
    identities: Mapping[Any, Any] | None = None,
) -> Picture:
    """Reads a structure.

    Args:
        graphdef: the structure of graphs, one after the other.
        roots: where each of them is.
        earlier: of the structure that its outer indexes are of: what was there is called by its place there.
        met: of a structure whose numbers it goes on with.
        leaves: the abstract values of its leaves, to be said of what is new.
        identities: by number, what must not become another.
    """
    reader = _Reader(graphdef, Picture(things=dict(met.things) if met else {}), earlier, leaves, identities or {})
    for root in roots:
        reader.node(root)
    return reader.picture


class _Reader:
    def __init__(
        self,
        graphdef: GraphDef[Any],
        into: Picture,
        earlier: Picture | None,
        leaves: Sequence[Any],
        identities: Mapping[Any, Any],
    ):
        self._nodes, self._attributes = iter(graphdef.nodes), iter(graphdef.attributes)
        self.picture = into
        self._earlier, self._values, self._identities = earlier, leaves, identities

    def node(self, path: Path) -> None:
        definition = next(self._nodes)
        number, parts, things = definition.index, self.picture.parts, self.picture.things
        # By the name of the first path to it, so that sharing that changed shows as a difference.
        again = isinstance(definition, NodeRef)
        if again:
            text, metadata = things.get(definition.index, ("an argument", {}))
        else:
            text = self._named(definition)
            metadata = definition.metadata if isinstance(definition, VariableDef) else {}
            if number is not None:
                where = text if self._earlier else f"the {text} at {format_path(path)}"
                things[number] = (where, metadata)
        parts[path] = Part(text, self._identities.get(number))
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
            return self._earlier.things[definition.outer_index][0]
        return f"a new {name}" if isinstance(definition, NodeDef) else f"a new {name} of {_text(self._next_value())}"

    def _children(self, definition: NodeDef[Any], path: Path) -> None:
        for _ in range(definition.num_attributes):
            key, mark = next(self._attributes)
            if isinstance(mark, Static):
                self.picture.parts[*path, key] = Part(str(Fixed(mark.value)), mark)
            elif isinstance(mark, LeafAttr):
                self.picture.parts[*path, key] = Part(self._array())
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


def describe_tree(apart: Tree, things: Sequence[Any], root: str) -> Described:
    """What must not change of a tree that is carried.

    Args:
        apart: the tree.
        things: the objects and Variables in it that must stay the same.
        root: what it is called.
    """
    structure, same = apart.structure, {id(node) for node in things}
    numbered = ((number, apart.plan.node(number)) for number in apart.plan.by_number)
    identities = {number: Identity(node) for number, node in numbered if id(node) in same}
    paths = [(root, *base) for base in apart.bases]
    return Described(
        root,
        Make(structure.treedef, (structure.graphdef, *identities.values())),
        (*(((root, *leaf.path), abstract(leaf.value)) for leaf in apart.leaves), *_statics(structure.items, paths)),
        lambda: picture(structure.graphdef, _paths_of(NODE, structure.items, paths), identities=identities).parts,
    )


def describe_arguments(structure: RefStructure, names: Sequence[str]) -> Described:
    """What a trace over graphs is told apart by, beside the types of arrays: static values are its leaves."""
    # Anything will do in the places of arrays and objects, of which the structure tells.
    skeleton = structure.treedef.unflatten([jax.ShapeDtypeStruct((), "float32")] * len(structure.items))
    whole = [(named(path, names), value) for path, value in iter_configuration(skeleton)]
    paths = [named(path, names) for path in item_paths(structure.treedef)]
    parts = picture(structure.graphdef, _paths_of(NODE, structure.items, paths)).parts
    attributes = [(path, part.value.value) for path, part in parts.items() if isinstance(part.value, Static)]
    return Described(
        "arguments",
        Make(structure.treedef, (structure.graphdef, structure.items)),
        (*_statics(structure.items, paths), *((path, Fixed(value)) for path, value in (*whole, *attributes))),
        lambda: {path: part for path, part in parts.items() if not isinstance(part.value, Static)},
    )


def describe_outcome(structure: RefStructure, names: Sequence[str], outcome: RefOutcome, groups: Groups) -> Described:
    """What must not differ between the outputs of branches, and between what they do to their arguments.

    Args:
        structure: of the call that the branches were given.
        names: of the arguments.
        outcome: what one returned and did.
        groups: the lanes that it returned.
    """
    paths = item_paths(outcome.treedef, "output")
    roots = _paths_of(NODE, outcome.items, paths)
    returned = [_value(source, groups) for source in outcome.sources]
    leaves = [*picture(outcome.graphdef, roots).leaves, *_paths_of(ARRAY, outcome.items, paths)]
    full = [named(path, names) for path in structure.full_paths]
    updated = [(full[i], _value(source, groups)) for i, *source in outcome.updates]
    places = [named(path, names) for path in item_paths(structure.treedef)]
    given = _paths_of(NODE, structure.items, places)
    new: list[Any] = []
    if outcome.arguments is not None:
        new = [_value(source, groups) for source in outcome.arguments[1]]
        now = zip(picture(outcome.arguments[0], given).leaves, new, strict=True)
        updated += [(path, value) for path, value in now if value is not AS_GIVEN]

    def parts() -> Mapping[Path, Part]:
        before = picture(structure.graphdef, given)
        if outcome.arguments is not None:
            after = picture(outcome.arguments[0], given, earlier=before, leaves=new)
        else:
            after = picture(structure.graphdef.with_same_outer_index(), given, earlier=before)
            for i, metadata in outcome.metadata:
                after.parts.update(_metadata(full[i], metadata))
        output = picture(outcome.graphdef, roots, earlier=before, met=after, leaves=returned)
        return {**after.parts, **output.parts}

    # Branches must also do the same to their arguments: one outcome says what is written, whichever was taken.
    did = (outcome.arguments, outcome.updates, outcome.metadata)
    return Described(
        "output",
        Make(outcome.treedef, (outcome.items, outcome.graphdef, *did)),
        (*zip(leaves, returned, strict=True), *_statics(outcome.items, paths), *updated),
        parts,
    )


def _value(source: Sequence[int], groups: Groups) -> Any:
    lane, place = source
    return AS_GIVEN if lane == FORWARDED else abstract(groups[lane][place])


def _text(value: Any) -> str:
    return str(value).lstrip("~")


def _metadata(path: Path, metadata: Mapping[str, Any]) -> dict[Path, Part]:
    return {(*path, key): Part(repr(value)) for key, value in metadata.items()}


def item_paths(treedef: Any, *root: str) -> list[Path]:
    """Where the items of a tree are."""
    items, _ = jax.tree_util.tree_flatten_with_path(treedef.unflatten(range(treedef.num_leaves)))
    return [(*root, *map(key_part, path)) for path, _ in items]


def _paths_of(mark: Any, items: Sequence[Any], paths: Sequence[Path]) -> list[Path]:
    return [path for item, path in zip(items, paths, strict=True) if item is mark]


def _statics(items: Sequence[Any], paths: Sequence[Path]) -> list[tuple[Path, Any]]:
    return [(path, item) for item, path in zip(items, paths, strict=True) if isinstance(item, Fixed)]
