"""The one walk over arguments and output at the end of a call, from which everything about the call is read.

The walk (a *look*) goes through the arguments first and then the output, under one numbering. An object of the
arguments that is returned is therefore a repeat in the output, which refers to it by number. A look remembers for each
object which slice of the leaves lies below it, so nothing below a repeat is walked twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from weft.core.paths import Path
from weft.nnx.graphs.definitions import GraphDef, IndexMap, RefMap
from weft.nnx.graphs.flattening import Flattener
from weft.nnx.variable.variable import VARIABLE_TYPES


class Mark(NamedTuple):
    """A position in the walk: how many definitions, attributes, leaves and numbers came before it."""

    nodes: int = 0
    attributes: int = 0
    leaves: int = 0
    numbers: int = 0


class Subwalk(NamedTuple):
    """The part of the walk below one root, or below one object.

    Attributes:
        path: the path of this object from its root.
        leaf, last_leaf: the slice of all leaves that were met first below it.
        repeat, last_repeat: the slice of all repeats below it: nodes that the walk had met before.
    """

    path: Path
    leaf: int
    last_leaf: int
    repeat: int
    last_repeat: int


class GraphWalk(Flattener):
    """A walk over several graphs under one numbering.

    Args:
        before: the numbers that objects of the arguments had on the way in; None if nothing refers to them.
    """

    def __init__(self, before: IndexMap | None):
        super().__init__(RefMap(), None if before is None else RefMap.from_indexmap(before), with_paths=True)
        self._seen_of: dict[int, Subwalk] = {}
        self._by_number: dict[int, Any] | None = None

    def here(self) -> Mark:
        """The current position of the walk."""
        return Mark(len(self.nodes), len(self.attributes), len(self.leaves), len(self.ref_index))

    def at(self, root: Any) -> Subwalk:
        """Walks one more graph."""
        leaf, repeat = len(self.leaves), len(self.repeats)
        self.root(root)
        return Subwalk((), leaf, len(self.leaves), repeat, len(self.repeats))

    def describe(self, node: Any, impl: Any, path: Path, number: int | None, outer: int | None) -> None:
        leaf, repeat = len(self.leaves), len(self.repeats)
        # The slices are noted around the walk of the children, so they cover everything below this node.
        super().describe(node, impl, path, number, outer)
        # Lists and dicts have no number, because they have no identity in NNX: what they hold belongs to their object.
        if number is not None:
            self._seen_of[number] = Subwalk(path, leaf, len(self.leaves), repeat, len(self.repeats))

    def between(self, start: Mark, end: Mark) -> GraphDef[Any]:
        """The structure of the graphs that were walked between two marks."""
        return GraphDef(
            self.nodes[start.nodes : end.nodes],
            self.attributes[start.attributes : end.attributes],
            end.leaves - start.leaves,
        )

    def leaves_of(self, seen: Subwalk) -> list[tuple[Path, Any]]:
        """The leaves that the walk met first below a root or object, with their paths from the root."""
        places = slice(seen.leaf, seen.last_leaf)
        return list(zip((self.paths or [])[places], self.leaves[places], strict=True))

    def met_again(self, seen: Subwalk) -> Iterator[tuple[Path, Any]]:
        """The Variables below the repeats of a root, with their paths from that root."""
        for number, path in self.repeats[seen.repeat : seen.last_repeat]:
            for below, variable in self.below(number):
                yield (*path, *below), variable

    def below(self, number: int) -> Iterator[tuple[Path, Any]]:
        """The Variables below the node of a number, each once, with their paths from that node."""
        # A number is never withdrawn, so an equal count means that the table is up to date.
        if self._by_number is None or len(self._by_number) != len(self.ref_index):
            self._by_number = {number: node for node, number in self.ref_index.items()}
        # A model may hold its parent (`child.up = self`): without `followed` this loop would not end.
        pending: list[tuple[int, Path]] = [(number, ())]
        followed: set[int] = set()
        listed: set[int] = set()
        while pending:
            number, path = pending.pop()
            leaves_here = [((), self._by_number[number])]
            seen = self._seen_of.get(number)
            if seen is not None and number not in followed:
                followed.add(number)
                root = len(seen.path)
                leaves_here = [(where[root:], leaf) for where, leaf in self.leaves_of(seen)]
                repeats_here = self.repeats[seen.repeat : seen.last_repeat]
                pending += [(repeated, (*path, *where[root:])) for repeated, where in repeats_here]
            for where, leaf in leaves_here:
                if type(leaf) in VARIABLE_TYPES and id(leaf) not in listed:
                    listed.add(id(leaf))
                    yield (*path, *where), leaf
