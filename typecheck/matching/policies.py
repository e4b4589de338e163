"""Policies: the differences between checking a call and proving a function, as data; all else is shared.

A call at run time is one of many, has one set of sizes, and may be in an eager program whose objects change during the
call. It is checked fast and for little: each record for its own dims, a value without arrays for its class.
A proof is about the program: one name has one size throughout a call, as a reader expects, unless the names of each
record are its own. Values without arrays are left to static type checkers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, eq=False)
class Policy:
    """How values are matched against annotations.

    Attributes:
        name: the name for messages and debugging.
        shares: whether plain records (NamedTuples, TypedDicts, dataclasses) use the names of the scope around them; if
            not, each has a scope of its own, as Modules always have.
        plain: whether values without arrays are checked outside of unions; in unions they always are.
        boxes: whether a box, such as `nnx.Param`, may stand for its array.
        opens_objects: whether the attributes of objects are checked; if not, only their class is.
        integers: which integers of a record bind dims: fields annotated `int`, or any integer that has the name of a
            dim, arguments of the constructor included.
        iterates: the classes of collections whose items are checked; iterating over any other may have effects.
        settles: whether an expression in a record's fields that reads unbound names is an error.
    """

    name: str
    shares: bool
    plain: bool
    boxes: bool
    opens_objects: bool
    integers: Literal["declared", "called like a dim"]
    iterates: tuple[type, ...]
    settles: bool

    @property
    def several(self) -> Policy:
        """The policy for items of a list or tree: the names of each record there are its own, even in a proof."""
        # Two layers in a list have different sizes under one name: with shared names, every list of layers would fail.
        return _SEVERAL.get(self, self)

    @property
    def within(self) -> Policy:
        """The policy for values inside a record that has names of its own."""
        return _WITHIN.get(self, self)


RUN_TIME = Policy(
    "run time",
    shares=False,
    plain=True,
    boxes=False,
    opens_objects=False,
    integers="declared",
    iterates=(list, tuple, set, frozenset, deque),
    settles=True,
)
PROOF = Policy(
    "proof",
    shares=True,
    plain=False,
    boxes=True,
    opens_objects=True,
    integers="called like a dim",
    iterates=(object,),
    settles=False,
)
# A proof in which the names of every record are its own; tried where a proof fails with one size for each name.
UNSHARED = replace(PROOF, name="proof, unshared", shares=False)

_SEVERAL = {PROOF: UNSHARED}
_WITHIN = {UNSHARED: PROOF}
