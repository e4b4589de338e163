"""Hijax boxes for JAX 0.12, where a traced box is immutable: two primitives make and read it, and none writes it.

The type of a traced box has everything but the arrays: the Variable's treedef and the types of its leaves. A concrete
box, outside all transforms, is written like any Python object.
"""

# JAX annotates these interfaces loosely.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
from jax.core import Tracer
from weft.core.edge import hijax
from weft.core.edge.contexts import EAGER, current_level
from weft.nnx.errors import ImmutableVariableError


class BoxType(hijax.HiType):
    """The type of a box: the Variable's treedef and the types of its leaves. Subclasses define how `box` is made."""

    changes = False

    def __init__(self, var_type: type, treedef: Any, leaves: Sequence[Any], *, ref: bool = False):
        self.var_type, self.ref = var_type, ref
        self._treedef, self._leaves = treedef, tuple(leaves)

    @classmethod
    def of(cls, box: Any) -> BoxType:
        """The type of a concrete box (no tracer)."""
        return cls(box.var_type, box._treedef, tuple(map(jax.typeof, box._leaves)), ref=box.ref)

    def box(self, leaves: Sequence[Any]) -> Any:
        raise NotImplementedError

    def _key(self) -> Any:
        return (self.var_type, self._treedef, self._leaves, self.ref)

    def __hash__(self) -> int:
        return hash(self._key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoxType) and self._key() == other._key()

    def __repr__(self) -> str:
        return repr(jax.tree.unflatten(self._treedef, self._leaves))

    def __str__(self) -> str:
        return str(jax.tree.unflatten(self._treedef, self._leaves))

    # ------------------------------------------------------------------ lowering: a box becomes its leaves

    def lo_ty(self) -> list[Any]:
        return [low for aval in self._leaves for low in aval.lo_ty()]

    def lower_val(self, box: Any) -> list[Any]:
        leaves, treedef = read_leaves(box) if hasattr(box, "var_type") else jax.tree.flatten(box)
        assert treedef == self._treedef
        return [low for aval, leaf in zip(self._leaves, leaves, strict=True) for low in aval.lower_val(leaf)]

    def raise_val(self, *low: Any) -> Any:
        rest = iter(low)
        return self.box([aval.raise_val(*itertools.islice(rest, len(aval.lo_ty()))) for aval in self._leaves])

    # ------------------------------------------------------------------ derivatives: a tangent is a box of tangents

    def to_tangent_aval(self) -> BoxType:
        leaves = [aval.to_tangent_aval() for aval in self._leaves]
        return type(self)(self.var_type, self._treedef, leaves, ref=self.ref)

    # JAX adds cotangents of a box by these two, because it knows no sum of boxes itself.
    def vspace_zero(self) -> Any:
        return make_box(self, [hijax.zeros_of(aval) for aval in self._leaves])

    def vspace_add(self, augend: Any, addend: Any) -> Any:
        pairs = zip(self._leaves, read_leaves(augend)[0], read_leaves(addend)[0], strict=True)
        return make_box(self, [aval.vspace_add(left_leaf, right_leaf) for aval, left_leaf, right_leaf in pairs])


class MakeBox(hijax.ONE_CALL):
    """The primitive that makes a box from leaves; linear in them, so its derivative makes a box of tangents."""

    def __init__(self, kind: BoxType):
        self.in_avals, self.out_aval, self.params = kind._leaves, kind, {"kind": kind}
        super().__init__()

    def expand(self, *leaves: Any) -> Any:
        return self.out_aval.box(leaves)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        return self(*primals), make_box(self.out_aval.to_tangent_aval(), tangents)

    def lin(self, nonzero: Any, *leaves: Any) -> Any:
        return self(*leaves), None

    def linearized(self, residuals: None, *tangents: Any) -> Any:
        return make_box(self.out_aval.to_tangent_aval(), tangents)

    vjp_fwd = lin

    def vjp_bwd_retval(self, residuals: None, cotangent: Any) -> Any:
        return tuple(read_leaves(hijax.instantiate_zeros(cotangent))[0])

    def transpose(self, cotangent: Any, *accumulators: Any) -> None:
        for accumulator, leaf in zip(accumulators, self.vjp_bwd_retval(None, cotangent), strict=True):
            hijax.accumulate(accumulator, leaf)


class ReadBox(hijax.ONE_CALL):
    """The primitive that reads the leaves of a box; linear, like `MakeBox`."""

    def __init__(self, kind: BoxType):
        self.in_avals, self.out_aval, self.params = (kind,), kind._leaves, {"kind": kind}
        super().__init__()

    def expand(self, box: Any) -> Any:
        return box._leaves

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        return self(*primals), self.linearized(None, *tangents)

    def lin(self, nonzero: Any, box: Any) -> Any:
        return self(box), None

    def linearized(self, residuals: None, tangent: Any) -> Any:
        return tuple(read_leaves(tangent)[0])

    vjp_fwd = lin

    def vjp_bwd_retval(self, residuals: None, cotangents: Any) -> Any:
        return (make_box(self.in_avals[0].to_tangent_aval(), cotangents),)

    def transpose(self, cotangents: Any, accumulator: Any) -> None:
        hijax.accumulate(accumulator, *self.vjp_bwd_retval(None, cotangents))


def make_box(kind: BoxType, leaves: Sequence[Any], treedef: Any = None) -> Any:
    """Makes a box of a type from leaves. `treedef` is ignored: here the type has it; other JAXes need it."""
    leaves = [hijax.instantiate_zeros(leaf) for leaf in leaves]
    # `kind` may have other types than the leaves (a weak type, float64 without x64), and JAX compares them exactly.
    now = type(kind)(kind.var_type, kind._treedef, tuple(map(jax.typeof, leaves)), ref=kind.ref)
    return MakeBox(now)(*leaves)


def read_leaves(box: Any) -> tuple[Sequence[Any], Any]:
    """Reads the leaves of a box or of its tracer. Returns them with the Variable's treedef."""
    if not isinstance(box, Tracer):
        return box._leaves, box._treedef
    return ReadBox(jax.typeof(box))(box), box._treedef


def write_leaves(box: Any, leaves: Sequence[Any], treedef: Any) -> None:
    """Writes leaves and a treedef into a concrete box, outside all transforms.

    Raises:
        ImmutableVariableError: inside a transform.
    """
    if isinstance(box, Tracer) or current_level() != EAGER:
        raise ImmutableVariableError(
            "Cannot update a hijax Variable inside of a JAX transform: in this JAX, hijax values are immutable there",
            fix="create it with ref=True, or without hijax=True, or return its new value and write that outside",
        )
    object.__setattr__(box, "_leaves", tuple(leaves))
    object.__setattr__(box, "_treedef", treedef)
