"""One look at the end of a call over graphs: what its arguments hold now, and what it returned, in a single pass.

Arguments are looked at before the output, under one numbering. So a thing of the arguments that is returned is met
again there, and the output refers to it by its number. What is below something that is met again was seen where it was
met first: a look remembers which part of its leaves that was, and nothing is walked twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from weft.core.paths import Path
from weft.nnx.graphs.definitions import GraphDef, IndexMap, RefMap
from weft.nnx.graphs.flattening import Flattener
from weft.nnx.variable.variable import VARIABLE_TYPES


class Mark(NamedTuple):
    """How much has been seen: so many definitions, leaves and numbers."""

    nodes: int = 0
    attributes: int = 0
    leaves: int = 0
    numbers: int = 0


class Seen(NamedTuple):
    """What was seen of one root, or of one object below a root.

    Attributes:
        path: where it is, inside of its root.
        leaf, last_leaf: from where to where its leaves are among all.
        repeat, last_repeat: likewise what was met again in it.
    """

    path: Path
    leaf: int
    last_leaf: int
    repeat: int
    last_repeat: int


class Look(Flattener):
    """A pass over several graphs.

    Args:
        before: the numbers that things of the arguments had on the way in; None where they do not matter.
    """

    def __init__(self, before: IndexMap | None):
        super().__init__(RefMap(), None if before is None else RefMap.from_indexmap(before), True)
        self._things: dict[int, Seen] = {}
        self._by_number: dict[int, Any] | None = None

    def here(self) -> Mark:
        """How much has been seen."""
        return Mark(len(self.nodes), len(self.attributes), len(self.leaves), len(self.ref_index))

    def at(self, root: Any) -> Seen:
        """Looks at one more graph."""
        leaf, repeat = len(self.leaves), len(self.repeats)
        self.root(root)
        return Seen((), leaf, len(self.leaves), repeat, len(self.repeats))

    def describe(self, node: Any, impl: Any, path: Path, number: int | None, outer: int | None) -> None:
        leaf, repeat = len(self.leaves), len(self.repeats)
        super().describe(node, impl, path, number, outer)
        # A container has no number: it is no thing of its own, and what is in it counts to what it is in.
        if number is not None:
            self._things[number] = Seen(path, leaf, len(self.leaves), repeat, len(self.repeats))

    def between(self, start: Mark, end: Mark) -> GraphDef[Any]:
        """The structure of the graphs that were seen between two marks."""
        return GraphDef(
            self.nodes[start.nodes : end.nodes],
            self.attributes[start.attributes : end.attributes],
            end.leaves - start.leaves,
        )

    def leaves_of(self, seen: Seen) -> list[tuple[Path, Any]]:
        """The leaves that were met first in something, with their paths inside of its root."""
        places = slice(seen.leaf, seen.last_leaf)
        return list(zip((self.paths or [])[places], self.leaves[places], strict=True))

    def met_again(self, seen: Seen) -> Iterator[tuple[Path, Any]]:
        """The Variables in what was met again in a root, with their paths there."""
        for number, path in self.repeats[seen.repeat : seen.last_repeat]:
            for below, variable in self.below(number):
                yield (*path, *below), variable

    def below(self, number: int) -> Iterator[tuple[Path, Any]]:
        """The Variables in something that was met, each once, with their paths from there on."""
        # Numbers are given and never taken back, so as many as before are the same ones.
        if self._by_number is None or len(self._by_number) != len(self.ref_index):
            self._by_number = {number: node for node, number in self.ref_index.items()}
        # Objects may hold each other in a circle: each is followed once, and each Variable said once.
        pending: list[tuple[int, Path]] = [(number, ())]
        followed: set[int] = set()
        listed: set[int] = set()
        while pending:
            number, path = pending.pop()
            found = [((), self._by_number[number])]
            seen = self._things.get(number)
            if seen is not None and number not in followed:
                followed.add(number)
                root = len(seen.path)
                found = [(where[root:], leaf) for where, leaf in self.leaves_of(seen)]
                again = self.repeats[seen.repeat : seen.last_repeat]
                pending += [(other, (*path, *where[root:])) for other, where in again]
            for where, leaf in found:
                if type(leaf) in VARIABLE_TYPES and id(leaf) not in listed:
                    listed.add(id(leaf))
                    yield (*path, *where), leaf
