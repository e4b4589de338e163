"""Packed trees: States and objects as a single pytree node, in calls that plain `jax.jit` has compiled before.

JAX flattens pytrees in C++, but calls into Python for each node of a registered class: for every Variable of a State on
the way in and on the way out. With plain `jax.jit` on a model's State, that costs more than a small step computes. JAX
has a separate registry for the dispatch of compiled calls, in which only the leaves, their order, and an equal key for
trees of equal structure matter. In that registry a whole tree is one node, *packed*: its leaves, and a `Packing`, whose
equality is that of the tree's ordinary treedef.

Key paths, `is_leaf` and the treedefs that users see come from the other registries, and are unaffected.
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

# Types of which a value was seen to be an array: `isinstance` with `jax.Array` is slow, a set look-up is not. A program
# has one to three of them. One that makes classes of arrays as it runs must not keep them all alive.
_leaf_types: set[type] = set()
_MOST_LEAF_TYPES = 32


# A tree of one structure is packed at its third call: preparing costs as much as a few ordinary calls, and most
# structures of a test or notebook are seen once or twice.
MEETINGS = 3


def is_boxed(value: Any) -> bool:
    """Whether a value is a Variable and not a hijax box, which JAX takes as a leaf."""
    return type(value) in VARIABLE_TYPES


def all_leaves(values: Sequence[Any]) -> bool:
    """Whether all values are of types known as arrays or tracers, which JAX never flattens further."""
    types = set(map(type, values))
    if types <= _leaf_types:
        return True
    if len(_leaf_types) > _MOST_LEAF_TYPES:
        _leaf_types.clear()
    _leaf_types.update(type(value) for value in values if isinstance(value, jax.Array | np.ndarray))
    return types <= _leaf_types


class Packing:
    """The structure of a packed tree. Two are equal if their treedefs are; usually there is one object for each.

    Attributes:
        root: the tree's class.
        treedef: the tree's ordinary treedef.
        boxes: whether each leaf is the raw value of a Variable of its own.
        by_versions: whether structural versions detect every change of such a tree; None if not determined yet.
        assembly: a generated function that builds the objects around Variables faster than JAX; None until made.
    """

    __slots__ = ("__weakref__", "_kinds", "_metadata", "_outer", "assembly", "boxes", "by_versions", "root", "treedef")

    def __init__(self, tree: Any, treedef: trees.TreeDef):
        self.root, self.treedef = type(tree), treedef
        self.by_versions: bool | None = None
        self.assembly: Any = None
        variables, self._outer = trees.flatten(tree, is_boxed)
        self.boxes = len(variables) == treedef.num_leaves and all(map(is_boxed, variables))
        if self.boxes:
            self._kinds = [type(variable) for variable in variables]
            self._metadata = [variable._nnx_metadata.in_order() for variable in variables]

    def unpack(self, leaves: Sequence[Any], level: TraceState | None = None) -> Any:
        """Rebuilds the tree from leaves, at the trace level `level` (by default the current one)."""
        if not self.boxes:
            return self.treedef.unflatten(leaves)
        return self.around(self.boxed(leaves, level))

    def boxed(self, leaves: Sequence[Any], level: TraceState | None = None) -> list[Any]:
        """Makes the Variables around leaves."""
        # Four loops in C instead of a Python loop: a model's thousands of Variables are rebuilt at each call.
        variables = list(map(_new, self._kinds))
        for write, values in (
            (_set_raw_value, leaves),
            (_set_metadata, self._metadata),
            (_set_trace_state, itertools.repeat(level or current_trace_state())),
        ):
            any(map(write, variables, values))  # the writers return None, so `any` never stops early
        return variables

    def around(self, variables: Sequence[Any]) -> Any:
        """Rebuilds the tree around Variables."""
        return self._outer.unflatten(variables)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Packing) and self.treedef == other.treedef)

    def __hash__(self) -> int:
        return hash(self.treedef)


# One `Packing` for each treedef, so that JAX compares them by identity. Weakly: an entry lives as long as JAX's caches
# or a plan use it.
_packings: weakref.WeakValueDictionary[trees.TreeDef, Packing] = weakref.WeakValueDictionary()


def pack(tree: Any) -> tuple[Sequence[Any], Packing]:
    """Flattens a tree with JAX. Returns its leaves and its `Packing`."""
    leaves, treedef = trees.flatten(tree)
    try:
        known = _packings.get(treedef)
    except Exception:  # a static value of some stored treedef has an `==` that raises (numpy arrays)
        return leaves, Packing(tree, treedef)
    return leaves, _packings.setdefault(treedef, Packing(tree, treedef)) if known is None else known
