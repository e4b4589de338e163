"""Policies: in what checking a call and proving one differ, as data; all else about an annotation is the same for both.

A call at run time is one of many, made with one set of sizes, perhaps in an eager program with objects that others
change meanwhile. So it is asked little, fast: each record for its own dims, what cannot hold an array for its class.
A proof is about the program: one name has one size across a whole call, as its reader takes it, unless records keep
their names apart; and what holds no array is the static checkers' business.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, eq=False)
class Policy:
    """How annotations are matched.

    Attributes:
        name: what to call it.
        shares: whether plain records (NamedTuples, TypedDicts, dataclasses) share the names of the scope that they
            stand in; else each has a scope of its own, as Modules always have.
        plain: whether what can hold no array is looked at outside of a union, whose members it always tells apart.
        boxes: whether a box may stand for the array in it.
        opens_objects: whether an object's attributes are looked into; else its class is all that is asked.
        integers: which integers of a record bind dims: those whose fields are annotated `int`, or any that is called
            like a dim, what its constructor was given included.
        iterates: the collections whose items are looked at; iterating others may have effects.
        settles: whether an expression in a record's fields that reads what they do not bind is an error.
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
        """For what is one of several of its kind, in a list or a tree: there each record keeps its names."""
        return _SEVERAL.get(self, self)

    @property
    def within(self) -> Policy:
        """For what is inside of a record that has names of its own."""
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
# A proof in which every record keeps its names to itself: the search tries that where one size for a name fails.
APART = replace(PROOF, name="proof, apart", shares=False)

_SEVERAL = {PROOF: APART}
_WITHIN = {APART: PROOF}
