"""Hijax boxes for JAX up to 0.10, where a traced box is mutable: three primitives make, read and write it.

Inside a trace a box is a tracer, and JAX tracks the types of its current leaves (its *qdd*, quasi-dynamic data). The
box of a ref Variable is never written: its ref is.
"""

# floor: newer JAX has `fixed_boxes.py` alone.
# JAX annotates these interfaces loosely, and renames their parameters from release to release.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.extend.core import Effect
from weft.core.edge.hijax import changing as hijax
from weft.core.edge.hijax import held_now, instantiate_zeros
from weft.nnx.errors import ImmutableVariableError, WeftError


@dataclasses.dataclass(frozen=True)
class VariableQDD:
    """The content of a box at one point of a trace: the types of its leaves, and the Variable's treedef."""

    leaf_avals: tuple[Any, ...]
    treedef: Any

    def to_tangent_qdd(self) -> VariableQDD:
        return VariableQDD(tuple(aval.to_tangent_aval() for aval in self.leaf_avals), self.treedef)

    def normalize(self) -> VariableQDD:
        return VariableQDD(tuple(aval.normalize() for aval in self.leaf_avals), self.treedef)


class VariableEffect(Effect):
    """The effect of making or writing a box, which keeps JAX from dropping or reordering it."""


variable_effect = VariableEffect()
# Without this, JAX refuses to trace a scan or cond whose body writes a box.
hijax.control_flow_allowed_effects.add_type(VariableEffect)


class DifferentiatedBoxError(WeftError, NotImplementedError):
    """Raised for a derivative through making, reading or writing a mutable box."""


def _refuse_to_differentiate(action: str, *, changes: bool) -> None:
    if changes:
        raise DifferentiatedBoxError(
            f"{action} a hijax Variable cannot be differentiated",
            fix="differentiate with respect to its value, variable[...], or use a ref Variable",
        )


class BoxType(hijax.MutableHiType):
    """The type of a box. For a mutable box it names only the kind of Variable; the types of its leaves are its qdd.

    Subclasses define `new`, which makes a box from leaves and a treedef.
    """

    def __init__(self, var_type: type, treedef: Any, leaves: Sequence[Any] | None, *, ref: bool = False):
        self.var_type, self.ref = var_type, ref
        object.__setattr__(self, "changes", not ref)
        # A mutable box may get leaves of other types and another treedef, so they cannot be part of its type.
        self._treedef, self._leaves = (treedef, leaves) if ref else (None, None)

    @classmethod
    def of(cls, box: Any) -> BoxType:
        """The type of a concrete box (no tracer)."""
        return cls(box.var_type, box._treedef, tuple(map(jax.typeof, box._leaves)), ref=box.ref)

    @classmethod
    def new(cls, leaves: Sequence[Any], treedef: Any, var_type: type, ref: bool) -> Any:
        raise NotImplementedError

    def __hash__(self) -> int:
        return hash((BoxType, self.var_type, self._treedef, self._leaves))

    def __eq__(self, other: object) -> bool:
        # JAX compares the types of a loop's carry. The content may differ between two points of a trace, so only the
        # class counts.
        return isinstance(other, BoxType) and self.var_type == other.var_type

    def __repr__(self) -> str:
        return self.str_short()

    __str__ = __repr__

    # ------------------------------------------------------------------ lowering: a box becomes its leaves

    def lo_ty_qdd(self, qdd: VariableQDD) -> list[Any]:
        return [low for aval in qdd.leaf_avals for low in aval.lo_ty()]

    def _raise(self, qdd: VariableQDD, low: Sequence[Any]) -> list[Any]:
        rest = iter(low)
        return [aval.raise_val(*itertools.islice(rest, len(aval.lo_ty()))) for aval in qdd.leaf_avals]

    def new_from_loval(self, qdd: VariableQDD, *low: Any) -> Any:
        return self.new(self._raise(qdd, low), qdd.treedef, self.var_type, self.ref)

    def read_loval(self, qdd: VariableQDD, box: Any) -> list[Any]:
        leaves, _ = read_leaves(box)
        return [low for aval, leaf in zip(qdd.leaf_avals, leaves, strict=True) for low in aval.lower_val(leaf)]

    def update_from_loval(self, qdd: VariableQDD, box: Any, *low: Any) -> None:
        write_leaves(box, self._raise(qdd, low), qdd.treedef)

    def to_tangent_aval(self) -> BoxType:
        return type(self)(self.var_type, self._treedef, self._leaves, ref=self.ref)


class MakeBox(hijax.HiPrimitive):
    """The primitive that makes a box from leaves."""

    def is_high(self, *leaves: Any, **params: Any) -> bool:
        return True

    def impl(self, *leaves: Any, box_type: type[BoxType], treedef: Any, var_type: type, ref: bool) -> Any:
        return box_type.new(leaves, treedef, var_type, ref)

    to_lojax = impl

    def abstract_eval(self, *leaves: Any, box_type: type[BoxType], treedef: Any, var_type: type, ref: bool) -> Any:
        kind = box_type(var_type, treedef, leaves, ref=ref)
        if ref:
            return kind, set()
        return hijax.AvalQDD(kind, VariableQDD(tuple(leaves), treedef)), {variable_effect}

    def jvp(self, primals: Any, tangents: Any, *, ref: bool, **params: Any) -> Any:
        _refuse_to_differentiate("making", changes=not ref)
        return _bind_make(primals, ref=ref, **params), _bind_make(tangents, ref=ref, **params)

    def transpose(self, out: Any, *leaves: Any, treedef: Any, ref: bool, **_: Any) -> Any:
        _refuse_to_differentiate("making", changes=not ref)
        avals = tuple(leaf.aval if hijax.is_undefined_primal(leaf) else jax.typeof(leaf) for leaf in leaves)
        return read_box_p.bind(out, treedef=treedef, avals=avals, changes=not ref)


class WriteBox(hijax.HiPrimitive):
    """The primitive that writes new leaves into a mutable box."""

    multiple_results = True

    def is_high(self, *leaves: Any, **params: Any) -> bool:
        return True

    def impl(self, box: Any, *leaves: Any, treedef: Any) -> list[Any]:
        _check_mutable(box)
        object.__setattr__(box, "_leaves", leaves)
        object.__setattr__(box, "_treedef", treedef)
        return []

    to_lojax = impl

    def abstract_eval(self, box: Any, *leaves: Any, treedef: Any) -> Any:
        _check_mutable(box.aval)
        box.mutable_qdd.update(VariableQDD(leaves, treedef))
        return [], {variable_effect}

    def jvp(self, primals: Any, tangents: Any, *, treedef: Any) -> Any:
        # A box that is differentiated has a box of tangents, which gets the tangents of the same leaves.
        for box, *leaves in (primals, tangents):
            write_box_p.bind(box, *leaves, treedef=treedef)
        return [], []

    def transpose(self, *args: Any, **params: Any) -> Any:
        _refuse_to_differentiate("writing", changes=True)


class ReadBox(hijax.HiPrimitive):
    """The primitive that reads the leaves of a box."""

    multiple_results = True

    def impl(self, box: Any, **params: Any) -> Any:
        return box._leaves

    to_lojax = impl

    def abstract_eval(self, box: Any, *, treedef: Any, avals: Any, changes: bool) -> Any:
        return avals, {variable_effect} if changes else set()

    def jvp(self, primals: Any, tangents: Any, *, avals: Any, changes: bool, **params: Any) -> Any:
        _refuse_to_differentiate("reading", changes=changes)
        dots = tuple(aval.to_tangent_aval() for aval in avals)
        (box,), (dot,) = primals, tangents
        return (
            read_box_p.bind(box, avals=avals, changes=changes, **params),
            read_box_p.bind(dot, avals=dots, changes=changes, **params),
        )

    def transpose(self, out: Any, box: Any, *, treedef: Any, avals: Any, changes: bool) -> Any:
        _refuse_to_differentiate("reading", changes=changes)
        kind = box.aval if hijax.is_undefined_primal(box) else jax.typeof(box)
        return (make_box(kind, out),)


make_box_p = MakeBox("make_box")
write_box_p = WriteBox("write_box")
read_box_p = ReadBox("read_box")


def _check_mutable(box: Any) -> None:
    if not box.changes:
        raise ImmutableVariableError(
            "the box of a hijax ref Variable cannot be written; write through its ref: variable[...] = value"
        )


def _bind_make(leaves: Sequence[Any], **params: Any) -> Any:
    return make_box_p.bind(*map(instantiate_zeros, leaves), **params)


def make_box(kind: BoxType, leaves: Sequence[Any], treedef: Any = None) -> Any:
    """Makes a box of a type from leaves. A mutable box needs `treedef`, which is not part of its type."""
    treedef = kind._treedef if treedef is None else treedef
    return _bind_make(leaves, box_type=type(kind), treedef=treedef, var_type=kind.var_type, ref=kind.ref)


def read_leaves(box: Any) -> tuple[Sequence[Any], Any]:
    """Reads the leaves of a box or of its tracer. Returns them with the Variable's treedef."""
    if box.changes:
        qdd = held_now(box)
        treedef, avals = qdd.treedef, tuple(qdd.leaf_avals)
    else:
        treedef, leaves = box._treedef, box._leaves
        avals = leaves if isinstance(box, Tracer) else tuple(map(jax.typeof, leaves))
    return read_box_p.bind(box, treedef=treedef, avals=avals, changes=box.changes), treedef


def write_leaves(box: Any, leaves: Sequence[Any], treedef: Any) -> None:
    """Writes leaves and a treedef into a box.

    Raises:
        ImmutableVariableError: if the box is that of a ref Variable.
    """
    write_box_p.bind(box, *leaves, treedef=treedef)
