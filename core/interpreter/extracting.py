"""Generated code that flattens a tree of a known structure; see `codegen`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import equinox as eqx
import jax
from weft.core.edge import trees
from weft.core.edge.trees import TreeDef
from weft.core.interpreter.codegen import (
    MOST_LEAVES,
    PACKED,
    ExtractedRecords,
    Read,
    Record,
    Slot,
    Source,
    dynamic_fields,
    is_namedtuple,
    is_packed,
    picked,
    skeleton_of,
    tuple_of,
)
from weft.core.records.leaves import MISSING, NUMBERS, Repeats, array_types, keeps_numbers, known, repeats_of
from weft.core.records.partition import Structure
from weft.core.records.storage import PENDING, Bound, Form, Static, fields_of, read_dict, same_static


class SameObject:
    """Takes the place of a static leaf that must be the same object, without keeping the object alive."""

    __slots__ = ("identity",)

    def __init__(self, value: object):
        self.identity = id(value)


def make_extractor(
    structure: Structure, places: Sequence[tuple[int, int]], lanes: int, repeats: Repeats | None = None
) -> Callable[[Any], tuple[Sequence[Any] | None, Sequence[Any], tuple[tuple[Any, ...], ...]] | None] | None:
    """Generates a function that reads the dynamic leaves of a tree of this structure, in order and by lane.

    Args:
        structure: the structure of the trees to accept.
        places: for each dynamic leaf its lane and its place there.
        lanes: the number of lanes.
        repeats: which leaves have to be the same array, and no others; None to accept any.

    Returns:
        A function from a tree to `(records, values, groups)`, or to None if the tree has another structure. None
        instead of a function if the structure is too large, or has a node that refuses slots. `records[0]` is an
        `ExtractedRecords`, the others are the records that a builder may hand back; `records` is None if a leaf is a
        NumPy array or a number, because the call has to return a JAX array for it, and so a new record.
    """
    skeleton = skeleton_of(structure) if len(structure.paths) <= MOST_LEAVES else MISSING
    if skeleton is MISSING:
        return None
    reader = Reader({i: value for i, _, value in structure.statics})
    reader.read(skeleton, "root", in_record=False)
    source = reader.source
    source.lines.append(f"v = {tuple_of(reader.leaves)}")
    if reader.leaves:
        # A set of types, made in one pass in C, instead of a test for each leaf.
        source.lines.append("settled = {*map(type, v)} <= ready")
        inside = [name for name in reader.leaves if name not in reader.outside]
        source.lines.append(f"if not settled and not {{*map(type, {tuple_of(inside)})}} <= array_types: return None")
    if reader.outside:
        kinds = f"{{*map(type, {tuple_of([*reader.outside])})}}"
        source.lines.append(f"if not settled and not {kinds} - array_types <= numbers: return None")
    if repeats is not None and reader.count > 1:
        source.lines.append(f"if {_differs_from(repeats, reader.count)}: return None")
    # The description goes with the records at each call. If the outcome held it, JAX's cache of outcomes would keep the
    # configuration of the arguments, and the arrays in its closures, alive.
    offered = source.constant(ExtractedRecords(tuple(reader.records), tuple(reader.packed)))
    records = tuple_of([offered, *reader.names])
    settled = f"{records} if settled else None" if reader.leaves else records
    source.lines.append(f"return {settled}, v, {tuple_of(_by_lane(source, reader, places, lanes))}")
    return source.reading()


def _by_lane(source: Source, reader: Reader, places: Sequence[tuple[int, int]], lanes: int) -> list[str]:
    """The leaves of each lane, as expressions; in the generated code `v` is the tuple of all leaves."""
    if lanes == 1:
        return ["v"]
    groups: list[list[int]] = [[] for _ in range(lanes)]
    for position, (lane, _) in enumerate(places):
        groups[lane].append(position)
    if not reader.packed:
        return [tuple_of([reader.leaves[position] for position in group]) for group in groups]
    # The leaves of a packed record have no variables of their own, so they are picked from `v` by position.
    return [picked(source, "v", group) for group in groups]


def _differs_from(repeats: Repeats, count: int) -> str:
    """The expression for whether other leaves are the same array than `repeats` says."""
    if repeats:
        return f"repeats_of(v) != {repeats}"
    # Identity decides only for arrays: equal Python numbers may be one object, and in a trace two tracers may stand for
    # one array outside.
    return f"repeats_of(v) if known.get() or not settled else len({{*map(id, v)}}) != {count}"


class Reader:
    """Writes the extractor's lines while it walks a skeleton.

    Attributes:
        leaves: the dynamic leaves as items of a tuple display: the local variable of each leaf, or a starred expression
            for all leaves of a packed record.
        count: the number of these leaves.
        outside: the local variables of leaves outside of equinox's own records, where Python numbers are traced too.
        records: the records that a builder may hand back.
        names: the local variables of these records, or a starred expression for the inner records of a packed one.
        packed: see `ExtractedRecords`; the indices count the `ExtractedRecords` that comes before the records.
    """

    def __init__(self, statics: dict[int, Any], *, packs: bool = True):
        self.source = Source(
            fields_of=fields_of,
            get_dict=read_dict,
            # JAX creates some array types when they are first used. Those of this structure's leaves exist already,
            # because the structure comes from a call that was flattened.
            ready=frozenset(kind for kind in array_types() if issubclass(kind, jax.Array | jax.Ref)),
            array_types=array_types(),
            numbers=frozenset(NUMBERS),
            same=same_static,
            repeats_of=repeats_of,
            known=known,
            flatten_one_level=trees.children_of,
        )
        self.statics = statics
        self.packs = packs
        self.leaves: list[str] = []
        self.count = 0
        self.outside: dict[str, None] = {}
        self.records: list[Record | None] = []
        self.names: list[str] = []
        self.packed: list[tuple[int, int, Read]] = []

    def read(self, node: Any, expression: str, in_record: bool) -> bool:
        """Writes the lines that read a node; returns whether it holds no mutable object and no static leaf."""
        # Types are compared by `is`: a subclass of a container may be another pytree node, or override its access.
        if isinstance(node, Slot):
            return self._leaf(node, expression, in_record)
        if node is None:
            self._require(f"{expression} is None")
            return True
        name = self.source.assign(expression)
        self._require(f"type({name}) is {self.source.constant(type(node))}")
        if isinstance(node, eqx.Module):
            return self._record(node, name)
        if type(node) is Static:
            constant = self.source.constant(node)
            self._require(f"{name} is {constant} or {name} == {constant}")
            return True
        if type(node) in (tuple, list) or is_namedtuple(node):
            children = cast("Sequence[Any]", node)
            self._require(f"len({name}) == {len(children)}")
            settled = [self.read(child, f"{name}[{i}]", in_record) for i, child in enumerate(children)]
            return all(settled) and type(node) is not list
        if type(node) is Bound:
            # Without tests of the leaves: `Bound` has checked them when it was made.
            self._require(f"{name}.structure is {self.source.constant(node.structure)}")
            leaves = self.source.assign(f"{name}.leaves")
            for i in range(len(node.leaves)):
                self._slot(f"{leaves}[{i}]", in_record)
        elif type(node) is dict:
            items = cast("dict[Any, Any]", node)
            self._require(f"len({name}) == {len(items)}")
            # JAX orders a dict's children by key.
            for key in sorted(items):
                self.read(items[key], f"{name}[{self.source.constant(key)}]", in_record)
        else:
            self._registered_node(node, name, in_record)
        return False

    def _require(self, condition: str) -> None:
        self.source.lines.append(f"if not ({condition}): return None")

    def _leaf(self, slot: Slot, expression: str, in_record: bool) -> bool:
        name = self.source.assign(expression, "v")
        if slot.index in self.statics:
            value = self.statics[slot.index]
            if isinstance(value, SameObject):
                self._require(f"id({name}) == {value.identity}")
            else:
                self._same(name, value)
            return False
        self._slot(name, in_record)
        return True

    def _slot(self, name: str, in_record: bool) -> None:
        # In a record of equinox's own (`in_record`) a Python number is a static leaf, so that a dynamic leaf must be an
        # array. Anywhere else a number is traced like an array.
        if not in_record:
            self.outside[name] = None
        self.leaves.append(name)
        self.count += 1

    def _same(self, name: str, value: Any) -> None:
        constant = self.source.constant(value)
        self._require(f"{name} is {constant} or same({name}, {constant})")

    def _record(self, node: eqx.Module, name: str) -> bool:
        if self.packs and is_packed(node, self.statics):
            return self._packed(node, name)
        start, settled, packs = self.count, True, self.packs
        self.packs = False
        values = fields_of(node)
        dynamic = dynamic_fields(node)
        # A record that was returned as a pending one may since have been put into another record, and then has no
        # fields yet: `fields_of` builds them. The plain attribute dict is faster, and enough for a record too small for
        # that.
        read = "fields_of" if trees.structure(node).num_leaves >= PACKED and not packs else "get_dict"
        fields = self.source.assign(f"{read}({name})", "d")
        self._require(f"len({fields}) == {len(values)}")
        for field in node.__dataclass_fields__:
            if field in dynamic and field in values:
                settled &= self.read(values[field], f"{fields}[{field!r}]", not keeps_numbers(type(node)))
        for field, value in values.items():
            if field not in dynamic:
                self._same(self.source.assign(f"{fields}[{field!r}]", "v"), value)
                # Equinox's own static fields are compared by ==, for which 1 is 1.0 and True: such a record must not be
                # handed back in place of an equal one.
                settled &= type(value) is Static
        self.packs = packs
        if settled and self.count > start:
            self.records.append(Record(node, start, self.count))
            self.names.append(name)
        return settled

    def _packed(self, node: eqx.Module, name: str) -> bool:
        """Writes the call of a function that reads a packed record, pending or not, and notes the records inside."""
        inner = read_inside(node)
        read = _read_packed(inner, trees.structure(node))
        pair = self.source.assign(f"{self.source.constant(read)}({name})")
        self._require(f"{pair} is not None")
        start = len(self.records)
        self.records += [
            record and Record(record.node, self.count + record.start, self.count + record.stop)
            for record in inner.records
        ]
        self.names.append(f"*{pair}[0]")
        self.packed.append((start + 1, len(self.records), read))
        self.leaves.append(f"*{pair}[1]")
        self.count += inner.count
        return inner.records[-1] is not None

    def _registered_node(self, node: Any, name: str, in_record: bool) -> None:
        """Writes the lines that read a node of another library, by its registered flatten function."""
        children, data = cast(Any, trees.children_of(node))
        level = self.source.assign(f"flatten_one_level({name})")
        self._require(f"{level}[1] == {self.source.constant(data)}")
        listed = self.source.assign(f"tuple({level}[0])")
        children = tuple(children)
        self._require(f"len({listed}) == {len(children)}")
        for i, child in enumerate(children):
            self.read(child, f"{listed}[{i}]", in_record)


def read_inside(node: eqx.Module) -> Reader:
    """A reader that has read a packed record; its last record is the packed record itself."""
    inner = Reader({}, packs=False)
    if not inner.read(node, "root", in_record=False):
        inner.records.append(None)
        inner.names.append("root")
    return inner


def _read_packed(inner: Reader, treedef: TreeDef) -> Read:
    inner.source.lines.append(f"return {tuple_of(inner.names)}, {tuple_of(inner.leaves)}")
    read_fields = inner.source.reading()
    # The forms whose treedef was compared: a training loop returns its model with the same form at every step.
    forms: set[Form] = set()

    def read(record: Any) -> tuple[Sequence[Any], Sequence[Any]] | None:
        pending = read_dict(record).get(PENDING)
        if pending is None:
            return read_fields(record)
        # By treedef and not by form: two programs that return equal structures have forms of their own.
        if pending.form not in forms:
            if pending.form.treedef != treedef:
                return None
            forms.add(pending.form)
        return (*pending.records, record), pending.leaves

    return read
