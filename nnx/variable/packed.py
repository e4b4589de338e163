"""Packed trees: what `jax.jit` sees of States and objects in a call that it has compiled before.

JAX walks over pytrees in C++, but asks Python at each node whose class is not its own: for each Variable of a State
that goes in, and for each that comes out. A server that calls plain `jax.jit` on a model's state pays for each step.
For calls that are compiled already JAX keeps a registry apart, in which only two things count: the leaves in order, and
something equal for trees of equal make. So there a whole tree is one node, *packed*: its leaves, and a `Packing`, which
has the treedef that the tree has everywhere else.

Key paths, `is_leaf` and treedefs that anybody sees come from the other registries, and know nothing of this.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from weft.core.edge import trees
from weft.nnx.variable.tracers import TraceState, current_trace_state
from weft.nnx.variable.variable import VARIABLE_TYPES, Variable

_new = object.__new__
_set_raw_value = Variable.__dict__["_raw_value"].__set__
_set_trace_state = Variable.__dict__["_trace_state"].__set__
_set_metadata = Variable.__dict__["_nnx_metadata"].__set__

# Types whose values are certainly leaves; learned from the first value of each.
_leaf_types: set[type] = set()


# Getting ready for quick calls takes as long as a few slow ones, and more of them have to come for it to be worth that.
MEETINGS = 3


def is_boxed(value: Any) -> bool:
    """Whether a value is a Variable, and no hijax box."""
    return type(value) in VARIABLE_TYPES


def all_leaves(values: Sequence[Any]) -> bool:
    """Whether values are arrays or tracers, all of them: what JAX takes no further apart."""
    types = set(map(type, values))
    if types <= _leaf_types:
        return True
    _leaf_types.update(type(value) for value in values if isinstance(value, jax.Array | np.ndarray))
    return types <= _leaf_types


class Packing:
    """The make of a packed tree. Equal where treedefs are; as a rule there is one of each.

    Attributes:
        root: the tree's class.
        treedef: as everywhere else.
        boxes: whether the tree's leaves are the raw values of Variables, one each.
        by_versions: whether versions tell all that can change in such a tree; None where nobody has asked.
        assembly: what puts objects together around Variables quicker than JAX, once it is known.
    """

    __slots__ = ("__weakref__", "_kinds", "_metadata", "_outer", "assembly", "boxes", "by_versions", "root", "treedef")

    def __init__(self, tree: Any, treedef: trees.TreeDef):
        self.root, self.treedef = type(tree), treedef
        self.by_versions: bool | None = None
        self.assembly: Any = None
        found, self._outer = trees.flatten(tree, is_boxed)
        self.boxes = len(found) == treedef.num_leaves and all(map(is_boxed, found))
        if self.boxes:
            self._kinds = [type(variable) for variable in found]
            self._metadata = [variable._nnx_metadata.in_order() for variable in found]

    def unpack(self, leaves: Sequence[Any], level: TraceState | None = None) -> Any:
        """The tree that has these leaves, made at the current level if not at another."""
        if not self.boxes:
            return self.treedef.unflatten(leaves)
        return self.around(self.boxed(leaves, level))

    def boxed(self, leaves: Sequence[Any], level: TraceState | None = None) -> list[Any]:
        """The Variables of a tree that has these leaves."""
        # In steps of C: thousands of them come back from each call.
        variables = list(map(_new, self._kinds))
        for write, values in (
            (_set_raw_value, leaves),
            (_set_metadata, self._metadata),
            (_set_trace_state, itertools.repeat(level or current_trace_state())),
        ):
            any(map(write, variables, values))  # to write gives None, so that it runs through
        return variables

    def around(self, variables: Sequence[Any]) -> Any:
        """The tree that has these Variables."""
        return self._outer.unflatten(variables)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Packing) and self.treedef == other.treedef)

    def __hash__(self) -> int:
        return hash(self.treedef)


# Known as long as JAX, or somebody's plan, has it: so that JAX finds it equal at a glance.
_packings: weakref.WeakValueDictionary[trees.TreeDef, Packing] = weakref.WeakValueDictionary()


def pack(tree: Any) -> tuple[Sequence[Any], Packing]:
    """A tree's leaves and its `Packing`, in the long way."""
    leaves, treedef = trees.flatten(tree)
    try:
        found = _packings.get(treedef)
    except Exception:  # what is static in some other tree refuses to be compared
        return leaves, Packing(tree, treedef)
    return leaves, _packings.setdefault(treedef, Packing(tree, treedef)) if found is None else found
