"""Bindings: the sizes that the names of one scope stand for, and where each name was bound.

A *scope* is one call of one function, or one record. It is an object that each check passes to the next, never a global
or a context variable. So recursion, threads, async functions and two instances of a class cannot mix names.

A *slot* says which value is being checked, as data: "argument `x` of `f`", "field `weight` of `Linear`". An *origin* is
a slot, a path inside its value, an axis and the value; it is put into words only when an error needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from weft.core.paths import Path
from weft.core.records.kinds import NO_ROLE, Role
from weft.typecheck.language.annotations import Annotation
from weft.typecheck.language.dims import Dim, Shape, SymbolicDim


@dataclass(frozen=True)
class Slot:
    """The argument, return value or field that is being checked.

    Attributes:
        role: the sort of place.
        name: the parameter's or field's name.
        owner: the function or class that the parameter or field belongs to.
        annotation: what the value should be.
    """

    role: Literal["argument", "return", "yield", "sent", "field", "config", "value"]
    name: str
    owner: Any
    annotation: Annotation


class Origin(NamedTuple):  # made for every dim that is bound, and a tuple is the fastest to make
    """Where a name was bound: a slot, a path inside its value, an axis (None if no axis of an array), and the value."""

    slot: Slot
    path: Path
    axis: int | None
    value: Any


@dataclass(slots=True)
class Variadic:
    """The axes that `*name` stands for; `broadcastable` if every annotation so far wrote `*#name`."""

    shape: tuple[Any, ...]
    broadcastable: bool


@dataclass(slots=True)
class Pending:
    """An axis whose expression reads names that were not bound yet when the axis was checked."""

    dim: SymbolicDim
    size: Any
    origin: Origin


@dataclass(slots=True)
class PendingStructure:
    """A pytree structure such as `"S T"` whose names were not all bound yet when the tree was checked.

    Attributes:
        unbound: the error message if the names are never bound.
        check: checks the structure if it can, and returns whether it could.
        origin: where the tree stands.
    """

    unbound: str
    check: Callable[[], bool]
    origin: Origin


class Bindings:
    """The names of one scope and the sizes that they stand for.

    Attributes:
        sizes: the size of each single-axis name.
        variadics: the axes of each `*name`.
        structures: the treedef of each structure name.
        origins: where each name (with its `*`, if any) was bound.
        pending: expressions and structures still to be checked.
        arguments: returns the values that expressions in braces may read: arguments by name, or `self` for a record.
        slot: the argument or field that is being checked.
        path: the place inside the slot's value.
        leaf: which leaf of a `PyTree`, for dims that differ from leaf to leaf.
        lead: the leading axes of arrays here, from a stack of records, and the scope that names these axes.
        stack: the stack around a record here, whose arrays may have different leading axes.
        met: the arrays that checks have met, with their slots and dims, if somebody wants to know them.
        numpy: whether NumPy arrays may stand for JAX arrays here, as `jit` would convert them.
        sparse: whether `None` may stand for an array, as in one part of a split record.
    """

    # Slots, because a checked call makes a `Bindings` each time and reads its attributes at each axis.
    __slots__ = (
        *("arguments", "lead", "leaf", "met", "numpy", "origins", "path", "pending"),
        *("sizes", "slot", "sparse", "stack", "structures", "variadics"),
    )

    def __init__(self, slot: Slot, arguments: Callable[[], Mapping[str, Any]] = dict):
        self.sizes: dict[str, Any] = {}
        self.variadics: dict[str, Variadic] = {}
        self.structures: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}
        self.pending: list[Pending | PendingStructure] = []
        self.arguments = arguments
        self.slot = slot
        self.path: Path = ()
        self.leaf = ""
        self.lead: tuple[Shape, Bindings] | None = None
        self.stack: Stack | None = None
        self.met: list[tuple[Any, Slot, Shape]] | None = None
        self.numpy = self.sparse = False

    def snapshot(self) -> tuple[Any, ...]:
        """A copy of the bound names, from which `restore` forgets later ones."""
        # Pending entries are appended, so their number tells the later ones apart.
        return dict(self.sizes), dict(self.variadics), dict(self.structures), dict(self.origins), len(self.pending)

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Forgets the names bound since a snapshot, such as those of a union member that did not match."""
        self.sizes, self.variadics, self.structures, self.origins = map(dict, snapshot[:4])
        del self.pending[snapshot[4] :]


@dataclass(frozen=True)
class Stack:
    """The leading axes of the arrays in a record that is part of a stack.

    Attributes:
        leads: the possible leading axes; first, those of an array that has all axes of the stack.
        scope: the scope in which the axes were declared, and which their names belong to.
        declared: whether `Batched` gives their number, so that no other number is tried.
        role: the role that the field around the record gives it.
        known: the leading axes of each role of which an array was checked.
    """

    leads: tuple[Shape, ...]
    scope: Bindings | None = None
    declared: bool = False
    role: Role = NO_ROLE
    known: dict[Role, Shape] = field(default_factory=dict[Role, Shape])

    def under(self, axes: Shape, scope: Bindings) -> Stack:
        """The stack inside this one that a further `Batched` declares."""
        known = {role: axes.under(lead) for role, lead in self.known.items()}
        return Stack(tuple(axes.under(lead) for lead in self.leads), scope, declared=True, role=self.role, known=known)

    def lead_of(self, role: Role) -> Shape:
        """The leading axes of the arrays of a role."""
        return self.known.get(role, self.leads[0])

    def of(self, role: Role) -> tuple[Shape, ...]:
        """The leading axes that the arrays of a role may have: the known ones, else all that are possible."""
        return (self.known[role],) if role in self.known else self.leads


class Mismatch(Exception):
    """A value that does not fit its annotation; internal: `explain` turns it into a `ContractError`.

    Attributes:
        reason: the sort of mismatch, a key of the tables in `explain` and `fixes`.
        annotation: the expected annotation at `path`.
        value: the value at `path`.
        bindings: the scope.
        detail: further words for the message.
        axis: the axis of the value, for a dim.
        dim: the dim that the axis does not fit.
        expected: the size that the axis should have.
        leaf: the leaf that was being checked, for a "?n".
        outer: the places of the records around the field that does not fit, innermost first.
        inner: the scope of the record whose linked dim does not fit.
        lead: the leading axes that the array should have.
        stacked: the axes of the stack that the record seems to be, and an array that has them, if there is one.
        in_use: whether a method of the record is being called, so that it cannot be a tree of axes for `vmap`.
    """

    def __init__(
        self,
        reason: str,
        annotation: Any,
        value: Any,
        bindings: Bindings,
        *,
        detail: str = "",
        axis: int | None = None,
        dim: Dim | None = None,
        expected: Any = None,
        origin: Origin | None = None,
    ):
        # Nothing is put into words here, because a union drops the mismatches of the members that do not fit.
        self.reason, self.annotation, self.value, self.bindings = reason, annotation, value, bindings
        self.detail, self.axis, self.dim, self.expected = detail, axis, dim, expected
        self.slot, self.path = (bindings.slot, bindings.path) if origin is None else (origin.slot, origin.path)
        self.leaf = bindings.leaf
        self.outer: list[tuple[Slot, Path]] = []
        self.inner: Bindings | None = None
        self.lead = None if bindings.lead is None else bindings.lead[0]
        self.stacked: tuple[tuple[Any, ...], Origin | None] | None = None
        self.in_use = False
        super().__init__(reason)
