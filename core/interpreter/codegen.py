"""Generated code: taking a known structure apart, and building one, without going through JAX's pytree registry.

Flattening and building 300 records through the registry costs as much as a compiled call of 600 leaves, because each
record is a Python callback from C++. For a structure that is seen again, this file writes one straight-line function:

- an *extractor* checks that a tree is of exactly that structure (types, lengths, keys, static values) and reads its
  dynamic leaves; it returns None if anything differs, so it can never be stale;
- a *builder* makes a tree of that structure from leaves. A record of which no leaf changed is not built again: the
  caller's own is handed back, as a function of immutable records does that is not transformed.

Both are written from a *skeleton*: the tree definition unflattened with numbered slots in place of leaves. `exec` is
used here, once for each structure, because the same walk as closures was measured four times slower.

A large record that no other record holds is *packed*: the builder makes a pending one (`records.pending`), and the
extractor takes the leaves of a pending one as they are, with the records in it that were handed on. If the builder
hands back a record that nobody has looked at yet, the one around it is looked at first (`_filled`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, cast

import equinox as eqx
from weft.core.edge import trees
from weft.core.records.configuration import Mixed
from weft.core.records.leaves import MISSING
from weft.core.records.module import Module
from weft.core.records.partition import Structure
from weft.core.records.statics import Bound, Static

# Above this many leaves, compiling the generated function costs more than it is likely to save.
MOST_LEAVES = 20_000

# Of how many leaves a record is pending when it comes back. Generated code for a smaller one costs less.
PACKED = 24


class Slot:
    """Stands for leaf number `index` in a skeleton."""

    __slots__ = ("index",)

    def __init__(self, index: int):
        self.index = index


# The file name in frames of generated code.
GENERATED = "<weft generated>"


class Source:
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

    def reading(self) -> Callable[[Any], Any]:
        """Compiles the lines as a function from a tree, which gives None where a name is not there."""
        return self.function(
            "root", indent="    ", head="  try:\n", tail="  except (KeyError, AttributeError):\n    return None"
        )

    def function(self, arguments: str, *, indent: str = "  ", head: str = "", tail: str = "") -> Callable[..., Any]:
        """Compiles the lines as the body of a function."""
        # Under one name for all: what tells one from another in a profile is who called it.
        body = "\n".join(indent + line for line in self.lines)
        text = f"def generated({arguments}):\n{head}{body}\n{tail}"
        exec(compile(text, GENERATED, "exec"), self.constants)
        return self.constants["generated"]


def skeleton_of(structure: Structure) -> Any:
    """The structure with slots as leaves, or `MISSING` if a node of another library will not hold them."""
    try:
        # Through the constructors of other libraries' nodes, which may compute with what they take for arrays.
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
    """A tuple of what is at some places of another one: in one step of C, if there is more than one."""
    if len(places) < 2:
        return tuple_of([f"{values}[{place}]" for place in places])
    if list(places) == list(range(places[0], places[0] + len(places))):
        return f"{values}[{places[0]}:{places[0] + len(places)}]"
    return f"{source.constant(operator.itemgetter(*places))}({values})"


@dataclass(frozen=True)
class Record:
    """A record of a skeleton, and which of the dynamic leaves are its own."""

    node: eqx.Module
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Offered:
    """What the records are that an extractor gives.

    Attributes:
        records: each of them; None for one that is not handed back itself, as it has something that can be changed.
        packed: for each packed record where those in it begin, where it is itself, and what reads it.
    """

    records: tuple[Record | None, ...]
    packed: tuple[tuple[int, int, Read], ...]


# Of a packed record the records in it, ending with itself, and its leaves; None if it is of another structure.
Read = Callable[[Any], "tuple[Sequence[Any], Sequence[Any]] | None"]


def is_packed(record: eqx.Module, statics: Container[int]) -> bool:
    """Whether a record of a skeleton is pending when it comes back: a large one in which all is weft's or Python's."""
    leaves, treedef = trees.flatten(record)
    if len(leaves) < PACKED or any(slot.index in statics for slot in leaves):
        return False
    around = [treedef]
    for definition in around:  # which grows
        kind: Any = (definition.node_data() or (None, None))[0]
        bases = cast("tuple[type[Any], ...]", getattr(kind, "__mro__", ()))
        if kind not in _PLAIN and Module not in bases and not (tuple in bases and hasattr(kind, "_fields")):
            return False
        around += definition.children()
    return type(record).__getattribute__ is Module.__getattribute__


_PLAIN = {None, type(None), tuple, list, dict, Static, Mixed, Bound}
