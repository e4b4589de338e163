"""Generated code that builds a tree of a known structure; see `codegen`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, cast

import equinox as eqx
import jax
from weft.core.edge import trees
from weft.core.edge.trees import PyTree
from weft.core.edge.untyped import jnp
from weft.core.interpreter.codegen import (
    Offered,
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
from weft.core.records.pending import PENDING, Form, Pending, fields_of, write_dict
from weft.core.records.statics import Static

FORWARDED = -1


def as_array(value: Any) -> Any:
    """A forwarded argument as the array that JAX would have returned for it."""
    # A leaf is a tree itself where a graph's Variable holds one.
    return value if isinstance(value, _ARRAYS) else jax.tree.map(_leaf_as_array, value)


def _leaf_as_array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, _ARRAYS) else jnp.asarray(leaf)


_ARRAYS = (jax.Array, jax.Ref, jax.ShapeDtypeStruct)
Builder = Callable[..., Any]


def make_builder(structure: Structure, sources: Sequence[tuple[int, int]]) -> Builder:
    """Code that builds a tree of this structure.

    Args:
        structure: of the tree to build.
        sources: for each dynamic leaf, (lane, place), or (FORWARDED, position among the arguments).

    Returns:
        A function from `(values, groups, records)`, the arguments' leaves, the lanes that came out and the extractor's
        records, to the tree.
    """
    skeleton = skeleton_of(structure)
    if skeleton is MISSING:
        return functools.partial(through_registry, structure, sources)
    # Written when first needed: nearly always there is only one of the two.
    written: dict[bool, Builder] = {}

    def build(values: Sequence[Any], groups: Sequence[Sequence[Any]], records: Sequence[Any] | None = None) -> Any:
        known = written.get(records is None)
        if known is None:
            offered = None if records is None else records[0]
            known = written[records is None] = _builder(structure, sources, skeleton, offered)
        return known(values, groups, records)

    return build


def through_registry(
    structure: Structure,
    sources: Sequence[tuple[int, int]],
    values: Sequence[Any],
    groups: Sequence[Sequence[Any]],
    records: object = None,
) -> Any:
    """What a builder makes, without generated code."""
    return structure.build(
        [as_array(values[place]) if lane == FORWARDED else groups[lane][place] for lane, place in sources]
    )


def _builder(
    structure: Structure, sources: Sequence[tuple[int, int]], skeleton: Any, offered: Offered | None
) -> Builder:
    statics = {i: value for i, _, value in structure.statics}
    writer = _Writer(offered, statics)
    dynamic = iter(sources)
    for i in range(len(structure.paths)):
        if i in statics:
            writer.leaves[i] = writer.source.constant(statics[i])
            continue
        lane, place = next(dynamic)
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
        sources: of the dynamic ones: (lane, place), or (FORWARDED, position).
        offered: the records that may be handed back; None if none may.
        kept: the records of the skeleton that are there already, by their identities, and their places.
    """

    def __init__(self, offered: Offered | None, statics: Container[int] = ()):
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
        self._by_places = {(one.start, one.stop, type(one.node)): i for i, one in enumerate(records) if one is not None}
        self._looked_for: dict[int, None] = {}
        self.kept: Mapping[int, int] = {}
        self._packs = offered is not None

    def function(self, arguments: str) -> Builder:
        """The builder. Records that it hands back may be in a packed one that nobody has looked at."""
        packed = () if self.offered is None else self.offered.packed
        absent = [f"records[{i}] is None" for i in self._looked_for if any(start <= i < at for start, at, _ in packed)]
        if absent:
            self.source.lines.insert(0, f"if {' or '.join(absent)}: records = filled(records)")
        return self.source.function(arguments)

    def _handed_back(self, node: eqx.Module) -> str | None:
        """The record that a node of the output is equal to, if all its leaves are forwarded in order."""
        if self.offered is None:
            return None
        slots = jax.tree.leaves(node)
        places = [self.sources.get(slot.index, (0, 0)) if isinstance(slot, Slot) else (0, 0) for slot in slots]
        if not places or places[0][0] != FORWARDED:
            return None
        first = places[0][1]
        if places != [(FORWARDED, first + i) for i in range(len(places))]:
            return None
        found = self._by_places.get((first, first + len(places), type(node)))
        if found is None:
            return None
        record = self.offered.records[found]
        if record is None or trees.structure(record.node) != trees.structure(node):
            return None
        self._looked_for[found + 1] = None
        return f"records[{found + 1}]"

    def write(self, node: Any) -> str:
        """Lines for a node's children, and the expression for the node."""
        if isinstance(node, Slot):
            return self.leaves[node.index]
        if node is None:
            return "None"
        if type(node) is Static:
            return self.source.constant(node)
        if isinstance(node, eqx.Module):
            if id(node) in self.kept:
                return f"records[{self.kept[id(node)]}]"
            known = self._handed_back(node)
            if known is not None:
                return known
            return self._packed(node) if self._packs and is_packed(node, self.statics) else self._record(node)
        if type(node) is dict:
            items = cast("dict[Any, Any]", node)
            return f"{{{', '.join(f'{self.source.constant(k)}: {self.write(items[k])}' for k in sorted(items))}}}"
        if type(node) is tuple:
            return tuple_of([self.write(child) for child in cast("tuple[Any, ...]", node)])
        if type(node) is list:
            return f"[{', '.join(self.write(child) for child in cast('list[Any]', node))}]"
        if is_namedtuple(node):
            return f"{self.source.constant(type(node))}({', '.join(map(self.write, node))})"
        return self._other(node)

    def _packed(self, node: eqx.Module) -> str:
        within = read_inside(node).records[:-1]
        handed_back = [self._handed_back(one.node) if one else None for one in within]
        kept = {id(one.node): i for i, one in enumerate(within) if one and handed_back[i] is not None}
        form = self.source.constant(_form(node, kept))
        records = tuple_of([str(one) for one in handed_back]) if kept else self.source.constant((None,) * len(within))
        leaves = self._selected([self.sources[slot.index] for slot in jax.tree.leaves(node)])
        names = self.source.constant((*fields_of(node), PENDING))
        record = self.source.assign(f"new({self.source.constant(type(node))})", "r")
        self.source.lines.append(f"set_dict({record}, pending({names}, Pending({form}, {leaves}, {records})))")
        return record

    def _selected(self, sources: Sequence[tuple[int, int]]) -> str:
        """A tuple of what comes from several sources."""
        # The arguments last, whose number is not known here.
        lanes = sorted({lane for lane, _ in sources}, reverse=True)
        sizes = {lane: 1 + max(place for one, place in sources if one == lane) for lane in lanes}
        names = {lane: "values" if lane == FORWARDED else f"groups[{lane}]" for lane in lanes}
        if len(lanes) == 1:
            return picked(self.source, names[lanes[0]], [place for _, place in sources])
        starts = dict(zip(lanes, itertools.accumulate([0, *sizes.values()]), strict=False))
        row = ", ".join(f"*{names[lane]}[:{sizes[lane]}]" for lane in lanes)
        return picked(self.source, f"({row})", [starts[lane] + place for lane, place in sources])

    def _record(self, node: eqx.Module) -> str:
        values = fields_of(node)
        dynamic = dynamic_fields(node)
        # Children first, so that an expression for one child never sits between another's lines.
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

    def _other(self, node: Any) -> str:
        definition = trees.structure(node, lambda other: other is not node)
        children = tuple(cast(Any, trees.children_of(node))[0])
        build = self.source.constant(definition.unflatten)
        return f"{build}({tuple_of([self.write(child) for child in children])})"


def _form(node: eqx.Module, kept: Mapping[int, int]) -> Form:
    """The form of a packed record, some of whose records are there already: their identities, with their places."""
    written: list[Builder] = []

    def make(leaves: Sequence[Any], records: Sequence[Any]) -> PyTree:
        if not written:  # when first looked at: those of most programs never are
            writer = _Writer(None)
            writer.kept = kept
            writer.leaves = {slot.index: f"leaves[{i}]" for i, slot in enumerate(jax.tree.leaves(node))}
            writer.source.lines.append(f"return {writer.write(node)}")
            written.append(writer.function("leaves, records"))
        return written[0](leaves, records)

    return Form(trees.structure(node), make)


def _filled(records: Sequence[Any]) -> list[Any]:
    """An extractor's records once more, with those that are in packed ones."""
    now = list(records)
    for start, stop, read in records[0].packed:
        fields_of(now[stop])
        found = read(now[stop])
        assert found is not None
        now[start : stop + 1] = found[0]
    return now
