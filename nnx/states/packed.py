"""States packed: those that came out of a compiled call, and those that go into one call after the other.

The first are packed until somebody looks (see `State`): what comes out of one step goes into the next one as it is. The
second are the parameters that a server passes to each step. They are nested dicts, which anybody may change who holds
one; so a State hides them where nobody does, and has them again when somebody asks for one. What was in them then is
compared, in C, before they are hidden the next time.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

from weft.core.edge import trees
from weft.nnx.variable.packed import MEETINGS, Packing, all_leaves, is_boxed, pack
from weft.nnx.variable.tracers import TraceState, current_trace_state
from weft.nnx.versions import structure_epoch

_raw_value = operator.attrgetter("_raw_value")
_values = dict.values
_metadata = operator.attrgetter("_nnx_metadata")


class PackedLeaves:
    """What a compiled call returned in place of a State: no Variables yet."""

    __slots__ = ("_leaves", "_level", "packing")

    def __init__(self, leaves: Sequence[Any], packing: Packing, level: TraceState):
        self._leaves, self.packing, self._level = leaves, packing, level

    def read(self) -> Sequence[Any] | None:
        """The leaves, in order."""
        return self._leaves

    def unpack(self) -> dict[Any, Any]:
        """What was packed, of the level at which the call returned."""
        return self.packing.unpack(self._leaves, self._level)._mapping


class PackedVariables:
    """The Variables of a State in the order of its leaves, and its dicts, with what is in them.

    Args:
        state: a State of Variables, each the box of one leaf.
        packing: of it.
    """

    __slots__ = ("_dicts", "_epoch", "_keys", "_metadata", "_sizes", "_values", "_variables", "packing")

    def __init__(self, state: Any, packing: Packing):
        self.packing = packing
        self._epoch = structure_epoch.now
        self._variables, _ = trees.flatten(state, is_boxed)
        self._metadata = [*map(_metadata, self._variables)]
        self._dicts: list[dict[Any, Any]] = [vars(state)["_mapping"]]
        for inner in self._dicts:  # which grows
            self._dicts += [value for value in inner.values() if type(value) is dict]
        self._sizes = [*map(len, self._dicts)]
        self._keys = [*chain.from_iterable(self._dicts)]
        self._values = [*chain.from_iterable(map(_values, self._dicts))]

    def is_complete(self) -> bool:
        """Whether it has all that could change: there is no State in the State, and no list."""
        return all(type(value) is dict or is_boxed(value) for value in self._values)

    def hide(self, known: dict[str, Any]) -> bool:
        """Takes the dicts from a State that has the given attributes, if they are as they were and nobody holds one.

        Returns:
            Whether they are as they were.
        """
        if (
            known["_mapping"] is not self._dicts[0]
            or [*map(len, self._dicts)] != self._sizes
            or [*chain.from_iterable(self._dicts)] != self._keys
            or not all(map(operator.is_, chain.from_iterable(map(_values, self._dicts)), self._values))
        ):
            return False
        outer, *inner = map(sys.getrefcount, self._dicts)
        # All but the outermost are in the list of values too.
        if outer <= _HELD_BY_TWO and max(inner, default=0) <= _HELD_BY_TWO + 1:
            del known["_mapping"]
        return True

    def read(self) -> Sequence[Any] | None:
        """The leaves, or None if a Variable has other metadata now, or a container for a value."""
        now = structure_epoch.now
        if now != self._epoch:
            if not all(map(operator.is_, map(_metadata, self._variables), self._metadata)):
                return None
            self._epoch = now
        leaves = [*map(_raw_value, self._variables)]
        return leaves if all_leaves(leaves) else None

    def unpack(self) -> dict[Any, Any]:
        """What was packed."""
        return self._dicts[0]


def _counted() -> int:
    holder = {"inner": dict[Any, Any]()}
    return max(map(sys.getrefcount, [holder["inner"]]))


# What Python counts for a dict that is in another one and in a list.
_HELD_BY_TWO = _counted()


def pack_state(state: Any) -> tuple[Sequence[Any], Packing]:
    """A State's leaves in order, and its `Packing`."""
    known = vars(state)
    packed = known.get("_packed")
    if packed is not None and ("_mapping" not in known or packed.hide(known)):
        leaves = packed.read()
        if leaves is not None:
            return leaves, packed.packing
    leaves, packing = pack(state)
    if not packing.boxes:
        return leaves, packing
    if packed is not None:
        known.pop("_packed", None)
        known["_met"] = 0
    met = known["_met"] = known.get("_met", 0) + 1
    if met == MEETINGS and all_leaves(leaves):
        packed = PackedVariables(state, packing)
        if packed.is_complete():
            known["_packed"] = packed
    return leaves, packing


def unpack_state(packing: Packing, leaves: Sequence[Any]) -> Any:
    """A State of this make, which is no more than its leaves until somebody looks."""
    if not packing.boxes:
        return packing.unpack(leaves)
    state = object.__new__(packing.root)
    vars(state)["_packed"] = PackedLeaves(leaves, packing, current_trace_state())
    return state
