"""Packed States, for compiled calls of plain `jax.jit` that return a State, or that get the same State again and again.

A State that a compiled call returns is *packed*: it has only leaves, and builds dicts and Variables when it is first
read (see `State`). A training loop that passes it on never reads it.

A State that a server passes to each call is read from a list of its Variables (`PackedVariables`). Its nested dicts may
be mutated by any code with a reference to one. So if there is no other reference, the State drops its own reference to
the dicts ("hides" them), which makes a mutation impossible, and takes it back when it is read. Dicts that were readable
in between are compared with their former content, in C, when they are hidden again.
"""

from __future__ import annotations

import operator
import sys
import sysconfig
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
    """The leaves of a State that a compiled call has returned, before its Variables are built."""

    __slots__ = ("_leaves", "_level", "packing")

    def __init__(self, leaves: Sequence[Any], packing: Packing, level: TraceState):
        self._leaves, self.packing, self._level = leaves, packing, level

    def read(self) -> Sequence[Any] | None:
        """Returns the leaves, in order."""
        return self._leaves

    def unpack(self) -> dict[Any, Any]:
        """Builds the dicts and Variables, at the trace level at which the call returned."""
        return self.packing.unpack(self._leaves, self._level)._mapping


class PackedVariables:
    """The Variables of a State in the order of its leaves, and its dicts with their content.

    Args:
        state: a State of Variables with one leaf each.
        packing: the packing of the State.
    """

    __slots__ = ("_dicts", "_epoch", "_keys", "_metadata", "_sizes", "_values", "_variables", "packing")

    def __init__(self, state: Any, packing: Packing):
        self.packing = packing
        self._epoch = structure_epoch.now
        self._variables, _ = trees.flatten(state, is_boxed)
        self._metadata = [*map(_metadata, self._variables)]
        self._dicts: list[dict[Any, Any]] = [vars(state)["_mapping"]]
        for inner in self._dicts:  # the loop appends to the list it runs over
            self._dicts += [value for value in inner.values() if type(value) is dict]
        self._sizes = [*map(len, self._dicts)]
        self._keys = [*chain.from_iterable(self._dicts)]
        self._values = [*chain.from_iterable(map(_values, self._dicts))]

    def is_complete(self) -> bool:
        """Whether all containers of the State are known: it contains only dicts and Variables."""
        # `hide` compares the items of dicts by identity: a list among them could change inside and still be the same
        # list.
        return all(type(value) is dict or is_boxed(value) for value in self._values)

    def hide(self, known: dict[str, Any]) -> bool:
        """Hides the dicts of a State if their content is unchanged and there is no other reference to one of them.

        Args:
            known: the `vars()` of the State.

        Returns:
            Whether the content is unchanged.
        """
        if known.get("_mapping") is not self._dicts[0]:
            return False
        if COUNTS_ARE_EXACT:
            # Another thread may read the State meanwhile, so the order matters. A read after the next line goes by
            # `unpack`, which ends the hiding. A reference from an earlier read is counted. If that read has ended, the
            # comparison, which comes last, sees what it changed.
            known.pop("_mapping", None)
            outer, *inner = map(sys.getrefcount, self._dicts)
            # Inner dicts are referred to by their parent, by `_dicts` and by `_values`, the outermost by `_dicts`.
            if outer >= _TWO_REFERENCES or max(inner, default=0) > _TWO_REFERENCES + 1:
                known.setdefault("_mapping", self._dicts[0])
        return (
            [*map(len, self._dicts)] == self._sizes
            and [*chain.from_iterable(self._dicts)] == self._keys
            and all(map(operator.is_, chain.from_iterable(map(_values, self._dicts)), self._values))
        )

    def read(self) -> Sequence[Any] | None:
        """Returns the leaves, or None if a Variable has new metadata, or a container for a value."""
        now = structure_epoch.now
        if now != self._epoch:
            if not all(map(operator.is_, map(_metadata, self._variables), self._metadata)):
                return None
            self._epoch = now
        leaves = [*map(_raw_value, self._variables)]
        return leaves if all_leaves(leaves) else None

    def unpack(self) -> dict[Any, Any]:
        """Returns the hidden dicts."""
        return self._dicts[0]


def _counted() -> int:
    holder = {"inner": dict[Any, Any]()}
    return max(map(sys.getrefcount, [holder["inner"]]))


# The reference count of a dict that is in one dict and one list, measured: it differs between versions of Python.
_TWO_REFERENCES = _counted()
# Free-threaded Python counts the references of other threads apart, and may read an old count of theirs. No dict is
# hidden there: each call compares the content of all of them, which takes up to twice the time of a call.
COUNTS_ARE_EXACT = not sysconfig.get_config_var("Py_GIL_DISABLED")


def pack_state(state: Any) -> tuple[Sequence[Any], Packing]:
    """Returns a State's leaves in order, and its `Packing`."""
    known = vars(state)
    packed = known.get("_packed")
    # The State is still hidden, or its dicts can be hidden again.
    if packed is not None and ("_mapping" not in known or packed.hide(known)):
        leaves = packed.read()
        if leaves is not None:
            return leaves, packed.packing
    leaves, packing = pack(state)
    # A list of Variables can stand for a State only if each leaf is the value of a Variable of its own (`boxes`). The
    # list is made at the third of such calls, because few States are passed so often (see `MEETINGS`).
    if not packing.boxes:
        return leaves, packing
    if packed is not None:
        # The State has changed since it was packed. It is counted from the start, because only a State that stays the
        # same from call to call gains by it.
        known.pop("_packed", None)
        known["_met"] = 0
    count = known["_met"] = known.get("_met", 0) + 1
    if count == MEETINGS and all_leaves(leaves):
        packed = PackedVariables(state, packing)
        if packed.is_complete():
            known["_packed"] = packed
    return leaves, packing


def unpack_state(packing: Packing, leaves: Sequence[Any]) -> Any:
    """Makes a packed State: it builds its dicts and Variables when it is first read."""
    if not packing.boxes:
        return packing.unpack(leaves)
    state = object.__new__(packing.root)
    vars(state)["_packed"] = PackedLeaves(leaves, packing, current_trace_state())
    return state
