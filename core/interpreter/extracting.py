"""Generated code that takes a tree of a known structure apart; see `codegen`."""

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
    Offered,
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
from weft.core.records.aliases import Repeats, known, repeats_of
from weft.core.records.leaves import MISSING, NUMBERS, array_types, keeps_numbers
from weft.core.records.partition import Structure
from weft.core.records.pending import PENDING, Form, fields_of, read_dict
from weft.core.records.statics import Bound, Static, same_static


class SameObject:
    """In place of a static leaf: it must be one object, which is known by identity and not kept alive."""

    __slots__ = ("identity",)

    def __init__(self, value: object):
        self.identity = id(value)


def make_extractor(
    structure: Structure, places: Sequence[tuple[int, int]], lanes: int, repeats: Repeats | None = None
) -> Callable[[Any], tuple[Sequence[Any] | None, Sequence[Any], tuple[tuple[Any, ...], ...]] | None] | None:
    """Code that reads the dynamic leaves of a tree of this structure, in order and by lane.

    Args:
        structure: of the trees to accept.
        places: for each dynamic leaf its lane and its place there.
        lanes: how many lanes there are.
        repeats: which leaves have to be one array, and no others; None if that is all the same.

    Returns:
        A function from a tree to `(records, values, groups)`, or to None if the tree is of another structure; or None
        instead of a function if the structure is too large to be worth it, or cannot be written down. `records` are
        what a builder may hand back, behind a list of what they are; None if a leaf is an array to NumPy and would come
        back as one of JAX's.
    """
    skeleton = skeleton_of(structure) if len(structure.paths) <= MOST_LEAVES else MISSING
    if skeleton is MISSING:
        return None
    reader = Reader({i: value for i, _, value in structure.statics})
    reader.read(skeleton, "root", in_record=False)
    source = reader.source
    source.lines.append(f"v = {tuple_of(reader.leaves)}")
    if reader.leaves:
        # One pass over the types in C instead of a test for each leaf.
        source.lines.append("settled = {*map(type, v)} <= ready")
        inside = [name for name in reader.leaves if name not in reader.outside]
        source.lines.append(f"if not settled and not {{*map(type, {tuple_of(inside)})}} <= array_types: return None")
    if reader.outside:
        kinds = f"{{*map(type, {tuple_of([*reader.outside])})}}"
        source.lines.append(f"if not settled and not {kinds} - array_types <= numbers: return None")
    if repeats is not None and reader.count > 1:
        source.lines.append(f"if {_differs_from(repeats, reader.count)}: return None")
    # What they are goes with them: an outcome that knew would keep what its arguments closed over alive.
    offered = source.constant(Offered(tuple(reader.records), tuple(reader.packed)))
    records = tuple_of([offered, *reader.names])
    settled = f"{records} if settled else None" if reader.leaves else records
    source.lines.append(f"return {settled}, v, {tuple_of(_by_lane(source, reader, places, lanes))}")
    return source.reading()


def _by_lane(source: Source, reader: Reader, places: Sequence[tuple[int, int]], lanes: int) -> list[str]:
    """The leaves of each lane, as expressions."""
    if lanes == 1:
        return ["v"]
    groups: list[list[int]] = [[] for _ in range(lanes)]
    for position, (lane, _) in enumerate(places):
        groups[lane].append(position)
    if not reader.packed:
        return [tuple_of([reader.leaves[position] for position in group]) for group in groups]
    return [picked(source, "v", group) for group in groups]


def _differs_from(repeats: Repeats, count: int) -> str:
    """Whether leaves are one array that `repeats` has apart, or the reverse."""
    if repeats:
        return f"repeats_of(v) != {repeats}"
    # Numbers may be one object, and tracers stand for arrays that are one: only of arrays do identities say it.
    return f"repeats_of(v) if known.get() or not settled else len({{*map(id, v)}}) != {count}"


class Reader:
    """Writes the extractor's lines while it walks a skeleton.

    Attributes:
        leaves: the dynamic leaves as the items of a tuple: the local of each, or those of a packed record together.
        count: how many leaves these are.
        outside: the locals of leaves that no record holds, where Python numbers are arrays too.
        records: what a builder may hand back.
        names: the locals of these, those in a packed record together.
        packed: see `Offered`; places are those behind the first, which is what the records are.
    """

    def __init__(self, statics: dict[int, Any], *, packs: bool = True):
        self.source = Source(
            fields_of=fields_of,
            get_dict=read_dict,
            # Those of the structure's own leaves are among them: it was taken apart before.
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
        """Writes what reads a node, and says whether nothing in it can be changed in place or is a static leaf."""
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
            # Its leaves were checked when it was made.
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
            self._other(node, name, in_record)
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
        # One that is large enough to be pending may have been put into another since.
        read = "fields_of" if trees.structure(node).num_leaves >= PACKED and not packs else "get_dict"
        fields = self.source.assign(f"{read}({name})", "d")
        self._require(f"len({fields}) == {len(values)}")
        for field in node.__dataclass_fields__:
            if field in dynamic and field in values:
                settled &= self.read(values[field], f"{fields}[{field!r}]", not keeps_numbers(type(node)))
        for field, value in values.items():
            if field not in dynamic:
                self._same(self.source.assign(f"{fields}[{field!r}]", "v"), value)
                # What is static in equinox's own modules is compared by ==, for which 1 is 1.0 and True.
                settled &= type(value) is Static
        self.packs = packs
        if settled and self.count > start:
            self.records.append(Record(node, start, self.count))
            self.names.append(name)
        return settled

    def _packed(self, node: eqx.Module, name: str) -> bool:
        inner = read_inside(node)
        read = _read_packed(inner, trees.structure(node))
        found = self.source.assign(f"{self.source.constant(read)}({name})")
        self._require(f"{found} is not None")
        start = len(self.records)
        self.records += [
            one and Record(one.node, self.count + one.start, self.count + one.stop) for one in inner.records
        ]
        self.names.append(f"*{found}[0]")
        self.packed.append((start + 1, len(self.records), read))
        self.leaves.append(f"*{found}[1]")
        self.count += inner.count
        return inner.records[-1] is not None

    def _other(self, node: Any, name: str, in_record: bool) -> None:
        children, data = cast(Any, trees.children_of(node))
        level = self.source.assign(f"flatten_one_level({name})")
        self._require(f"{level}[1] == {self.source.constant(data)}")
        listed = self.source.assign(f"tuple({level}[0])")
        children = tuple(children)
        self._require(f"len({listed}) == {len(children)}")
        for i, child in enumerate(children):
            self.read(child, f"{listed}[{i}]", in_record)


def read_inside(node: eqx.Module) -> Reader:
    """The reader of a packed record, whose records end with itself."""
    inner = Reader({}, packs=False)
    if not inner.read(node, "root", in_record=False):
        inner.records.append(None)
        inner.names.append("root")
    return inner


def _read_packed(inner: Reader, treedef: TreeDef) -> Read:
    inner.source.lines.append(f"return {tuple_of(inner.names)}, {tuple_of(inner.leaves)}")
    straight = inner.source.reading()
    forms: set[Form] = set()

    def read(record: Any) -> tuple[Sequence[Any], Sequence[Any]] | None:
        pending = read_dict(record).get(PENDING)
        if pending is None:
            return straight(record)
        if pending.form not in forms:
            if pending.form.treedef != treedef:
                return None
            forms.add(pending.form)
        return (*pending.records, record), pending.leaves

    return read
