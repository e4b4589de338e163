"""Generated code that builds a tree of a known structure; see `codegen`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, cast

import equinox as eqx
import jax
from weft.core.edge import trees
from weft.core.edge.trees import PyTree
from weft.core.edge.untyped import jnp
from weft.core.interpreter.codegen import (
    ExtractedRecords,
    Slot,
    Source,
    dynamic_fields,
    is_namedtuple,
    is_packed,
    picked,
    skeleton_of,
    tuple_of,
)
from weft.core.interpreter.extracting import read_inside
from weft.core.records.leaves import MISSING
from weft.core.records.partition import Structure
from weft.core.records.storage import PENDING, Form, Pending, Static, fields_of, write_dict

FORWARDED = -1


def as_array(value: Any) -> Any:
    """Converts a forwarded argument (a number, a NumPy array) to the array that JAX would have returned for it."""
    # The value of an NNX Variable may be a tree of arrays, which counts as one leaf.
    return value if isinstance(value, _ARRAYS) else jax.tree.map(_leaf_as_array, value)


def _leaf_as_array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, _ARRAYS) else jnp.asarray(leaf)


_ARRAYS = (jax.Array, jax.Ref, jax.ShapeDtypeStruct)
Builder = Callable[..., Any]


def make_builder(structure: Structure, sources: Sequence[tuple[int, int]]) -> Builder | None:
    """Generates a function that builds a tree of this structure.

    Args:
        structure: the structure of the tree to build.
        sources: for each dynamic leaf, (lane, place), or (FORWARDED, position among the arguments).

    Returns:
        A function from `(values, groups, records)` to the tree: `values` are the arguments' leaves, `groups` the lanes
        that came out of the transform, and `records` what the extractor returned. None if the tree has a node that
        cannot be built from placeholders.
    """
    skeleton = skeleton_of(structure)
    if skeleton is MISSING:
        return None
    # One builder for calls whose records may be handed back, and one for calls whose may not. Each is generated when
    # it is first needed, since nearly every program needs only one of the two.
    written: dict[bool, Builder] = {}

    def build(values: Sequence[Any], groups: Sequence[Sequence[Any]], records: Sequence[Any] | None = None) -> Any:
        builder = written.get(records is None)
        if builder is None:
            offered = None if records is None else records[0]
            builder = written[records is None] = _builder(structure, sources, skeleton, offered)
        return builder(values, groups, records)

    return build


def _builder(
    structure: Structure, sources: Sequence[tuple[int, int]], skeleton: Any, offered: ExtractedRecords | None
) -> Builder:
    statics = {i: value for i, _, value in structure.statics}
    writer = _Writer(offered, statics)
    dynamic = iter(sources)
    for i in range(len(structure.paths)):
        if i in statics:
            writer.leaves[i] = writer.source.constant(statics[i])
            continue
        lane, place = next(dynamic)
        # A call whose leaves are not all JAX arrays has no records to hand back; its NumPy arrays and numbers are
        # converted, as JAX would have done.
        if lane != FORWARDED:
            writer.leaves[i] = f"groups[{lane}][{place}]"
        else:
            writer.leaves[i] = f"values[{place}]" if offered is not None else f"as_array(values[{place}])"
        writer.sources[i] = lane, place
    writer.source.lines.append(f"return {writer.write(skeleton)}")
    return writer.function("values, groups, records")


class _Writer:
    """Writes the builder's lines while it walks a skeleton.

    Attributes:
        leaves: the expression of each leaf.
        sources: for each dynamic leaf, (lane, place), or (FORWARDED, position).
        offered: the records that may be handed back; None if none may.
        available: the index in `records` of each record of the skeleton that need not be built, by the record's id.
    """

    def __init__(self, offered: ExtractedRecords | None, statics: Container[int] = ()):
        self.source = Source(
            new=object.__new__,
            set_dict=write_dict,
            as_array=as_array,
            filled=_filled,
            Pending=Pending,
            pending=dict.fromkeys,
        )
        self.leaves: dict[int, str] = {}
        self.sources: dict[int, tuple[int, int]] = {}
        self.offered, self.statics = offered, statics
        records = () if offered is None else offered.records
        self._by_places = {(r.start, r.stop, type(r.node)): i for i, r in enumerate(records) if r is not None}
        self._handed_back_places: dict[int, None] = {}
        self.available: Mapping[int, int] = {}
        self._packs = offered is not None

    def function(self, arguments: str) -> Builder:
        """Compiles the lines into the builder."""
        packed = () if self.offered is None else self.offered.packed
        # A pending record does not have its inner records until somebody looks at it (their entries are None), so the
        # builder makes it build them before it hands one of them back.
        places = [i for i in self._handed_back_places if any(start <= i < at for start, at, _ in packed)]
        absent = [f"records[{i}] is None" for i in places]
        if absent:
            self.source.lines.insert(0, f"if {' or '.join(absent)}: records = filled(records)")
        return self.source.function(arguments)

    def _handed_back(self, node: eqx.Module) -> str | None:
        """The argument's record that equals a node of the output: all leaves of the node are forwarded from it, in
        order. None if there is none."""
        if self.offered is None:
            return None
        # A static slot has no source, and gets a place that is not forwarded: a record with a static leaf is never
        # handed back (see `extracting.Reader.read`).
        slots = jax.tree.leaves(node)
        places = [self.sources.get(slot.index, (0, 0)) if isinstance(slot, Slot) else (0, 0) for slot in slots]
        if not places or places[0][0] != FORWARDED:
            return None
        first = places[0][1]
        if places != [(FORWARDED, first + i) for i in range(len(places))]:
            return None
        index = self._by_places.get((first, first + len(places), type(node)))
        if index is None:
            return None
        record = self.offered.records[index]
        # The configuration of the output's record may differ though all its arrays are forwarded.
        if record is None or trees.structure(record.node) != trees.structure(node):
            return None
        # At run time `records[0]` is `offered`, so that the records start at 1.
        self._handed_back_places[index + 1] = None
        return f"records[{index + 1}]"

    def write(self, node: Any) -> str:
        """Writes the lines that build a node's children, and returns the expression for the node."""
        if isinstance(node, Slot):
            return self.leaves[node.index]
        if node is None:
            return "None"
        if type(node) is Static:
            return self.source.constant(node)
        if isinstance(node, eqx.Module):
            if id(node) in self.available:
                return f"records[{self.available[id(node)]}]"
            handed_back = self._handed_back(node)
            if handed_back is not None:
                return handed_back
            return self._packed(node) if self._packs and is_packed(node, self.statics) else self._record(node)
        if type(node) is dict:
            items = cast("dict[Any, Any]", node)
            # In the order of the sorted keys, in which JAX flattens and rebuilds a dict.
            return f"{{{', '.join(f'{self.source.constant(k)}: {self.write(items[k])}' for k in sorted(items))}}}"
        if type(node) is tuple:
            return tuple_of([self.write(child) for child in cast("tuple[Any, ...]", node)])
        if type(node) is list:
            return f"[{', '.join(self.write(child) for child in cast('list[Any]', node))}]"
        if is_namedtuple(node):
            return f"{self.source.constant(type(node))}({', '.join(map(self.write, node))})"
        return self._registered_node(node)

    def _packed(self, node: eqx.Module) -> str:
        """Writes a pending record: its leaves, and those of its inner records that the arguments have already."""
        inner = read_inside(node).records[:-1]
        handed_back = [self._handed_back(record.node) if record else None for record in inner]
        available = {id(record.node): i for i, record in enumerate(inner) if record and handed_back[i] is not None}
        form = self.source.constant(_form(node, available))
        # `str(None)` is the expression `None`. Without any record to hand back, one constant tuple serves all calls.
        expressions = tuple_of(list(map(str, handed_back)))
        records = expressions if available else self.source.constant((None,) * len(inner))
        leaves = self._selected([self.sources[slot.index] for slot in jax.tree.leaves(node)])
        names = self.source.constant((*fields_of(node), PENDING))
        # Every field maps to the same `Pending`, so that reading any of them builds the record, and so does the key
        # PENDING, by which `fields_of` recognises a pending record with one lookup.
        record = self.source.assign(f"new({self.source.constant(type(node))})", "r")
        self.source.lines.append(f"set_dict({record}, pending({names}, Pending({form}, {leaves}, {records})))")
        return record

    def _selected(self, sources: Sequence[tuple[int, int]]) -> str:
        """The expression for a tuple of leaves that come from several lanes and from the arguments."""
        # The lanes are concatenated, and one `itemgetter` picks from them in C. The arguments come last (FORWARDED is
        # -1), because how many leaves they have is not known here.
        lanes = sorted({lane for lane, _ in sources}, reverse=True)
        sizes = {lane: 1 + max(place for source, place in sources if source == lane) for lane in lanes}
        names = {lane: "values" if lane == FORWARDED else f"groups[{lane}]" for lane in lanes}
        if len(lanes) == 1:
            return picked(self.source, names[lanes[0]], [place for _, place in sources])
        starts = dict(zip(lanes, itertools.accumulate([0, *sizes.values()]), strict=False))
        row = ", ".join(f"*{names[lane]}[:{sizes[lane]}]" for lane in lanes)
        return picked(self.source, f"({row})", [starts[lane] + place for lane, place in sources])

    def _record(self, node: eqx.Module) -> str:
        values = fields_of(node)
        dynamic = dynamic_fields(node)
        # Children first, because an expression may only use names that the lines before it assign. No record in this
        # one is packed: `codegen` packs those that lie in no other.
        packs, self._packs = self._packs, False
        children = {name: self.write(value) for name, value in values.items() if name in dynamic}
        self._packs = packs
        record = self.source.assign(f"new({self.source.constant(type(node))})", "r")
        fields = [
            f"{name!r}: {children[name] if name in dynamic else self.source.constant(value)}"
            for name, value in values.items()
        ]
        self.source.lines.append(f"set_dict({record}, {{{', '.join(fields)}}})")
        return record

    def _registered_node(self, node: Any) -> str:
        """Writes a node of another library, which only its registered functions can build."""
        definition = trees.structure(node, lambda below: below is not node)
        children = tuple(cast(Any, trees.children_of(node))[0])
        build = self.source.constant(definition.unflatten)
        return f"{build}({tuple_of([self.write(child) for child in children])})"


def _form(node: eqx.Module, available: Mapping[int, int]) -> Form:
    """The form of a pending record; `available` is as in `_Writer`."""
    written: list[Builder] = []

    def make(leaves: Sequence[Any], records: Sequence[Any]) -> PyTree:
        # Generated when somebody first looks at the record: in a training loop nobody ever looks at the model.
        if not written:
            writer = _Writer(None)
            writer.available = available
            writer.leaves = {slot.index: f"leaves[{i}]" for i, slot in enumerate(jax.tree.leaves(node))}
            writer.source.lines.append(f"return {writer.write(node)}")
            written.append(writer.function("leaves, records"))
        return written[0](leaves, records)

    return Form(trees.structure(node), make)


def _filled(records: Sequence[Any]) -> list[Any]:
    """The extractor's records with the inner records of pending ones, which this builds."""
    filled = list(records)
    for start, stop, read in records[0].packed:
        fields_of(filled[stop])
        inner_records_and_leaves = read(filled[stop])
        assert inner_records_and_leaves is not None
        filled[start : stop + 1] = inner_records_and_leaves[0]
    return filled
