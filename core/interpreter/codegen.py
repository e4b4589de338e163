"""Generated code: taking a known structure apart, and building one, without going through JAX's pytree registry.

Flattening and building 300 records through the registry costs as much as a compiled call of 600 leaves, because each
record is a Python callback from C++. For a structure that is seen again, this file writes one straight-line function:

- an *extractor* checks that a tree is of exactly that structure (types, lengths, keys, static values) and reads its
  dynamic leaves; it returns None if anything differs, so it can never be stale;
- a *builder* makes a tree of that structure from leaves. A record of which no leaf changed is not built again: the
  caller's own is handed back, as a function of immutable records does that is not transformed.

Both are written from a *skeleton*: the tree definition unflattened with numbered slots in place of leaves. `exec` is
used here, once for each structure, because the same walk as closures was measured four times slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import equinox as eqx
import jax
from weft.core.edge import trees
from weft.core.edge.untyped import jnp
from weft.core.records.aliases import Repeats, known, repeats_of
from weft.core.records.leaves import MISSING, NUMBERS, array_types, keeps_numbers
from weft.core.records.partition import Structure
from weft.core.records.statics import Bound, Static, same_static

# Above this many leaves, compiling the generated function costs more than it is likely to save.
MOST_LEAVES = 20_000
FORWARDED = -1

# The descriptor itself: equinox's `__getattribute__` is Python code, and going around it saves a fifth of the time.
_get_dict = eqx.Module.__dict__["__dict__"].__get__
# A dict that is written down as a literal and set whole takes a fifth less than one that is filled key by key.
_set_dict = eqx.Module.__dict__["__dict__"].__set__


class SameObject:
    """In place of a static leaf: it must be one object, which is known by identity and not kept alive."""

    __slots__ = ("identity",)

    def __init__(self, value: object):
        self.identity = id(value)


class _Slot:
    """Stands for leaf number `index` in a skeleton."""

    __slots__ = ("index",)

    def __init__(self, index: int):
        self.index = index


def as_array(value: Any) -> Any:
    """A forwarded argument as the array that JAX would have returned for it."""
    # A leaf is a tree itself where a graph's Variable holds one.
    return value if isinstance(value, _ARRAYS) else jax.tree.map(_leaf_as_array, value)


def _leaf_as_array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, _ARRAYS) else jnp.asarray(leaf)


_ARRAYS = (jax.Array, jax.Ref, jax.ShapeDtypeStruct)


class _Source:
    """The text of a function under construction, with the constants that it refers to."""

    def __init__(self, **constants: Any):
        self.lines: list[str] = []
        self.constants: dict[str, Any] = constants
        self.names: dict[int, str] = {}
        self.fresh = 0

    def constant(self, value: Any) -> str:
        """A name for a constant; the same name for the same object."""
        name = self.names.get(id(value))
        if name is None:
            name = self.names[id(value)] = f"c{len(self.names)}"
            self.constants[name] = value
        return name

    def assign(self, expression: str, prefix: str = "n") -> str:
        """A new local for an expression."""
        self.fresh += 1
        name = f"{prefix}{self.fresh}"
        self.lines.append(f"{name} = {expression}")
        return name

    def function(self, arguments: str, *, indent: str = "  ", head: str = "", tail: str = "") -> Callable[..., Any]:
        """Compiles the lines as the body of a function."""
        # Under one name for all: what tells one from another in a profile is who called it.
        body = "\n".join(indent + line for line in self.lines)
        text = f"def generated({arguments}):\n{head}{body}\n{tail}"
        exec(compile(text, "<weft generated>", "exec"), self.constants)
        return self.constants["generated"]


def _skeleton(structure: Structure) -> Any:
    """The structure with slots as leaves, or `MISSING` if a node of another library will not hold them."""
    try:
        # Through the constructors of other libraries' nodes, which may compute with what they take for arrays.
        return structure.treedef.unflatten([_Slot(i) for i in range(len(structure.paths))])
    except Exception:
        return MISSING


def _is_namedtuple(node: Any) -> bool:
    return isinstance(node, tuple) and hasattr(cast(Any, node), "_fields")


def _dynamic_fields(record: eqx.Module) -> set[str]:
    fields = record.__dataclass_fields__.values()
    return {field.name for field in fields if not field.metadata.get("static", False)}


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
    skeleton = _skeleton(structure) if len(structure.paths) <= MOST_LEAVES else MISSING
    if skeleton is MISSING:
        return None
    reader = _read(structure, skeleton)
    source = reader.source
    groups: list[list[str]] = [[] for _ in range(lanes)]
    for name, (lane, _) in zip(reader.leaves, places, strict=True):
        groups[lane].append(name)
    source.lines.append(f"v = {_tuple(reader.leaves)}")
    if reader.leaves:
        # One pass over the types in C instead of a test for each leaf.
        source.lines.append("settled = {*map(type, v)} <= ready")
        inside = [name for name in reader.leaves if name not in reader.outside]
        source.lines.append(f"if not settled and not {{*map(type, {_tuple(inside)})}} <= array_types: return None")
    if reader.outside:
        kinds = f"{{*map(type, {_tuple([*reader.outside])})}}"
        source.lines.append(f"if not settled and not {kinds} - array_types <= numbers: return None")
    if repeats is not None and len(reader.leaves) > 1:
        source.lines.append(f"if {_differs_from(repeats, len(reader.leaves))}: return None")
    by_lane = ["v"] if lanes == 1 else [_tuple(group) for group in groups]
    # What they are goes with them: an outcome that knew would keep what its arguments closed over alive.
    offered = source.constant(tuple(reader.records))
    records = _tuple([offered, *(record.name for record in reader.records)])
    settled = f"{records} if settled else None" if reader.leaves else records
    source.lines.append(f"return {settled}, v, {_tuple(by_lane)}")
    return source.function(
        "root", indent="    ", head="  try:\n", tail="  except (KeyError, AttributeError):\n    return None"
    )


def _differs_from(repeats: Repeats, count: int) -> str:
    """Whether leaves are one array that `repeats` has apart, or the reverse."""
    if repeats:
        return f"repeats_of(v) != {repeats}"
    # Numbers may be one object, and tracers stand for arrays that are one: only of arrays do identities say it.
    return f"repeats_of(v) if known.get() or not settled else len({{*map(id, v)}}) != {count}"


def _read(structure: Structure, skeleton: Any) -> _Reader:
    source = _Source(
        get_dict=_get_dict,
        # Those of the structure's own leaves are among them: it was taken apart before.
        ready=frozenset(kind for kind in array_types() if issubclass(kind, jax.Array | jax.Ref)),
        array_types=array_types(),
        numbers=frozenset(NUMBERS),
        same=same_static,
        repeats_of=repeats_of,
        known=known,
        flatten_one_level=trees.children_of,
    )
    reader = _Reader(source, {i: value for i, _, value in structure.statics})
    reader.read(skeleton, "root", in_record=False)
    return reader


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)}{',' if names else ''})"


@dataclass(frozen=True)
class _Record:
    """A record of a skeleton, the local that holds it, and which of the dynamic leaves are its own."""

    name: str
    node: eqx.Module
    start: int
    stop: int


class _Reader:
    """Writes the extractor's lines while it walks a skeleton.

    Attributes:
        leaves: the local of each dynamic leaf.
        outside: those of leaves that no record holds, where Python numbers are arrays too.
        records: what a builder may hand back.
    """

    def __init__(self, source: _Source, statics: dict[int, Any]):
        self.source = source
        self.statics = statics
        self.leaves: list[str] = []
        self.outside: dict[str, None] = {}
        self.records: list[_Record] = []

    def read(self, node: Any, expression: str, in_record: bool) -> bool:
        """Writes what reads a node, and says whether nothing in it can be changed in place or is a static leaf."""
        if isinstance(node, _Slot):
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
        if type(node) in (tuple, list) or _is_namedtuple(node):
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

    def _leaf(self, slot: _Slot, expression: str, in_record: bool) -> bool:
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

    def _same(self, name: str, value: Any) -> None:
        constant = self.source.constant(value)
        self._require(f"{name} is {constant} or same({name}, {constant})")

    def _record(self, node: eqx.Module, name: str) -> bool:
        start, settled = len(self.leaves), True
        values = cast("dict[str, Any]", object.__getattribute__(node, "__dict__"))
        dynamic = _dynamic_fields(node)
        fields = self.source.assign(f"get_dict({name})", "d")
        self._require(f"len({fields}) == {len(values)}")
        for field in node.__dataclass_fields__:
            if field in dynamic and field in values:
                settled &= self.read(values[field], f"{fields}[{field!r}]", not keeps_numbers(type(node)))
        for field, value in values.items():
            if field not in dynamic:
                self._same(self.source.assign(f"{fields}[{field!r}]", "v"), value)
                # What is static in equinox's own modules is compared by ==, for which 1 is 1.0 and True.
                settled &= type(value) is Static
        if settled and len(self.leaves) > start:
            self.records.append(_Record(name, node, start, len(self.leaves)))
        return settled

    def _other(self, node: Any, name: str, in_record: bool) -> None:
        children, data = cast(Any, trees.children_of(node))
        level = self.source.assign(f"flatten_one_level({name})")
        self._require(f"{level}[1] == {self.source.constant(data)}")
        listed = self.source.assign(f"tuple({level}[0])")
        children = tuple(children)
        self._require(f"len({listed}) == {len(children)}")
        for i, child in enumerate(children):
            self.read(child, f"{listed}[{i}]", in_record)


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
    skeleton = _skeleton(structure)
    if skeleton is MISSING:

        def through_registry(values: Sequence[Any], groups: Sequence[Sequence[Any]], records: Any = None) -> Any:
            return structure.build(
                [as_array(values[place]) if lane == FORWARDED else groups[lane][place] for lane, place in sources]
            )

        return through_registry
    # Written when first needed: nearly always there is only one of the two.
    written: dict[bool, Builder] = {}

    def build(values: Sequence[Any], groups: Sequence[Sequence[Any]], records: Sequence[Any] | None = None) -> Any:
        known = written.get(records is None)
        if known is None:
            offered = None if records is None else records[0]
            known = written[records is None] = _builder(structure, sources, skeleton, offered)
        return known(values, groups, records)

    return build


def _builder(
    structure: Structure, sources: Sequence[tuple[int, int]], skeleton: Any, offered: Sequence[_Record] | None
) -> Builder:
    source = _Source(new=object.__new__, set_dict=_set_dict, as_array=as_array)
    dynamic = iter(sources)
    statics = {i: value for i, _, value in structure.statics}
    expressions: dict[int, str] = {}
    forwarded: dict[int, int] = {}
    for i in range(len(structure.paths)):
        if i in statics:
            expressions[i] = source.constant(statics[i])
            continue
        lane, place = next(dynamic)
        if lane != FORWARDED:
            expressions[i] = f"groups[{lane}][{place}]"
            continue
        forwarded[i] = place
        expressions[i] = f"values[{place}]" if offered is not None else f"as_array(values[{place}])"
    arrived = _Arrived(offered, forwarded) if offered and forwarded else None
    source.lines.append(f"return {_Writer(source, expressions, arrived).write(skeleton)}")
    return source.function("values, groups, records")


class _Arrived:
    """The records of the arguments that may be handed back, by the places of their leaves."""

    def __init__(self, records: Sequence[_Record], forwarded: dict[int, int]):
        self.by_places = {(record.start, record.stop, type(record.node)): i for i, record in enumerate(records)}
        self.records = records
        self.forwarded = forwarded

    def find(self, node: eqx.Module) -> int | None:
        """The number of the record that a node of the output is equal to, if all its leaves are forwarded in order."""
        slots = jax.tree.leaves(node)
        places = [self.forwarded.get(slot.index) if isinstance(slot, _Slot) else None for slot in slots]
        first = places[0] if places else None
        if first is None or places != list(range(first, first + len(places))):
            return None
        found = self.by_places.get((first, first + len(places), type(node)))
        if found is None or trees.structure(self.records[found].node) != trees.structure(node):
            return None
        return found


class _Writer:
    """Writes the builder's lines while it walks a skeleton."""

    def __init__(self, source: _Source, leaves: dict[int, str], arrived: _Arrived | None):
        self.source = source
        self.leaves = leaves
        self.arrived = arrived

    def write(self, node: Any) -> str:
        """Lines for a node's children, and the expression for the node."""
        if isinstance(node, _Slot):
            return self.leaves[node.index]
        if node is None:
            return "None"
        if type(node) is Static:
            return self.source.constant(node)
        if isinstance(node, eqx.Module):
            known = None if self.arrived is None else self.arrived.find(node)
            return self._record(node) if known is None else f"records[{known + 1}]"
        if type(node) is dict:
            items = cast("dict[Any, Any]", node)
            return f"{{{', '.join(f'{self.source.constant(k)}: {self.write(items[k])}' for k in sorted(items))}}}"
        if type(node) is tuple:
            return _tuple([self.write(child) for child in cast("tuple[Any, ...]", node)])
        if type(node) is list:
            return f"[{', '.join(self.write(child) for child in cast('list[Any]', node))}]"
        if _is_namedtuple(node):
            return f"{self.source.constant(type(node))}({', '.join(map(self.write, node))})"
        return self._other(node)

    def _record(self, node: eqx.Module) -> str:
        values = cast("dict[str, Any]", object.__getattribute__(node, "__dict__"))
        dynamic = _dynamic_fields(node)
        # Children first, so that an expression for one child never sits between another's lines.
        children = {name: self.write(value) for name, value in values.items() if name in dynamic}
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
        return f"{build}({_tuple([self.write(child) for child in children])})"
