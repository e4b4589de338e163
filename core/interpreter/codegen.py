"""Generated code that flattens a tree of a known structure, or builds one, without JAX's pytree registry.

Flattening and building 300 records through the registry costs as much as a compiled call of 600 leaves, because each
record is a Python callback from C++. For a structure that is seen again, this file writes one straight-line function:

- an *extractor* checks that a tree has exactly that structure (types, lengths, keys, static values) and reads its
  dynamic leaves; it returns None if anything differs, so that it is never stale;
- a *builder* makes a tree of that structure from leaves. If no leaf of a record changed, the builder does not make the
  record again: it hands back the caller's record, as an untransformed function of immutable records would.

Both are written from a *skeleton*: the treedef unflattened with numbered slots in place of leaves. `exec` is used here,
once for each structure, because the same walk as closures was measured four times slower.

A large record that lies in no other record is *packed*: the builder makes a pending record (`records.pending`), and the
extractor takes the leaves of a pending record as they are, with its inner records that were handed on. If the builder
hands back an inner record of a pending record, the pending record is built first (`_filled` in `building`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, cast

import equinox as eqx
from weft.core.edge import trees
from weft.core.records.configuration import MixedContainer
from weft.core.records.leaves import MISSING
from weft.core.records.module import Module
from weft.core.records.partition import Structure
from weft.core.records.storage import Bound, Static

# Above this many leaves, compiling the generated function costs more than later calls are likely to save.
MOST_LEAVES = 20_000

# A record of at least this many leaves is pending when a call returns it. Below, building the record at once costs less
# than the pending record does.
PACKED = 24


class Slot:
    """Takes the place of leaf number `index` in a skeleton."""

    __slots__ = ("index",)

    def __init__(self, index: int):
        self.index = index


# The file name in frames of generated code.
GENERATED = "<weft generated>"


class Source:
    """The source of a generated function: its lines so far, and the constants that they refer to."""

    def __init__(self, **constants: Any):
        self.lines: list[str] = []
        self.constants: dict[str, Any] = constants
        self.names: dict[int, str] = {}
        self.fresh = 0

    def constant(self, value: Any) -> str:
        """The name by which the lines refer to a constant; the same object has the same name."""
        # By identity: constants need not be hashable, and equal ones may differ (1 and True). The constant is stored,
        # so that no other object gets its id while the source is written.
        name = self.names.get(id(value))
        if name is None:
            name = self.names[id(value)] = f"c{len(self.names)}"
            self.constants[name] = value
        return name

    def assign(self, expression: str, prefix: str = "n") -> str:
        """Writes a line that assigns an expression to a new local variable, and returns the variable's name."""
        self.fresh += 1
        name = f"{prefix}{self.fresh}"
        self.lines.append(f"{name} = {expression}")
        return name

    def reading(self) -> Callable[[Any], Any]:
        """Compiles the lines as a function from a tree `root`, which returns None if a key or attribute is missing."""
        return self.function(
            "root", indent="    ", head="  try:\n", tail="  except (KeyError, AttributeError):\n    return None"
        )

    def function(self, arguments: str, *, indent: str = "  ", head: str = "", tail: str = "") -> Callable[..., Any]:
        """Compiles the lines as the body of a function."""
        # All generated functions have one name: a profile shows which is which by its caller.
        body = "\n".join(indent + line for line in self.lines)
        text = f"def generated({arguments}):\n{head}{body}\n{tail}"
        exec(compile(text, GENERATED, "exec"), self.constants)
        return self.constants["generated"]


def skeleton_of(structure: Structure) -> Any:
    """The structure unflattened with slots as leaves; `MISSING` if a node of another library refuses them."""
    try:
        # This runs the unflatten functions of other libraries, some of which compute with their children and raise
        # whatever a slot makes them raise.
        return structure.treedef.unflatten([Slot(i) for i in range(len(structure.paths))])
    except Exception:
        return MISSING


def is_namedtuple(node: Any) -> bool:
    return isinstance(node, tuple) and hasattr(cast(Any, node), "_fields")


def dynamic_fields(record: eqx.Module) -> set[str]:
    fields = record.__dataclass_fields__.values()
    return {field.name for field in fields if not field.metadata.get("static", False)}


def tuple_of(names: Sequence[str]) -> str:
    return f"({', '.join(names)}{',' if names else ''})"


def picked(source: Source, values: str, places: Sequence[int]) -> str:
    """The expression for a tuple of the items at some places of another tuple: a slice or an `itemgetter`, in C."""
    if len(places) < 2:
        return tuple_of([f"{values}[{place}]" for place in places])
    if list(places) == list(range(places[0], places[0] + len(places))):
        return f"{values}[{places[0]}:{places[0] + len(places)}]"
    return f"{source.constant(operator.itemgetter(*places))}({values})"


@dataclass(frozen=True)
class Record:
    """A record of a skeleton, whose dynamic leaves are those from `start` to `stop`."""

    node: eqx.Module
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class ExtractedRecords:
    """Describes the records that an extractor returns.

    Attributes:
        records: the records; None for one that must not be handed back, because it holds something mutable.
        packed: for each packed record the index of its first inner record, its own index, and the function that reads
            it.
    """

    records: tuple[Record | None, ...]
    packed: tuple[tuple[int, int, Read], ...]


# Reads a packed record: its inner records, followed by the record itself, and its leaves. None if its structure
# differs.
Read = Callable[[Any], "tuple[Sequence[Any], Sequence[Any]] | None"]


def is_packed(record: eqx.Module, statics: Container[int]) -> bool:
    """Whether a record of a skeleton is pending when a call returns it: it is large, and all its nodes are records of
    weft's or plain Python containers."""
    # Static slots are excluded, because the extractor of a pending record compares treedefs, which leave such leaves
    # out.
    leaves, treedef = trees.flatten(record)
    if len(leaves) < PACKED or any(slot.index in statics for slot in leaves):
        return False
    definitions = [treedef]
    for definition in definitions:  # the list grows while it is iterated
        kind: Any = (definition.node_data() or (None, None))[0]
        bases = cast("tuple[type[Any], ...]", getattr(kind, "__mro__", ()))
        if kind not in _PLAIN and Module not in bases and not (tuple in bases and hasattr(kind, "_fields")):
            return False
        definitions += definition.children()
    # A class that overrides attribute access would see a record that has no fields yet.
    return type(record).__getattribute__ is Module.__getattribute__


_PLAIN = {None, type(None), tuple, list, dict, Static, MixedContainer, Bound}
