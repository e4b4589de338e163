"""Bindings: what the names of one scope stand for, and where each was bound.

A *scope* is one call of one function, or one record. It is an object that is handed from check to check, never
something ambient, so recursion, threads, async functions and two instances of one class cannot mix theirs.

A *slot* is what is being checked, as data: "argument `x` of `f`", "field `weight` of `Linear`". An *origin* is a slot,
a path inside its value, an axis and the value's shape; it is only turned into words when an error needs it.
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
    """What is being checked.

    Attributes:
        role: which sort of place it is.
        name: the parameter's or field's name.
        owner: the function or the class that it belongs to.
        annotation: what it should be.
    """

    role: Literal["argument", "return", "yield", "sent", "field", "config", "value"]
    name: str
    owner: Any
    annotation: Annotation


class Origin(NamedTuple):  # a tuple is made fastest, and one is made for every dim that is bound
    """Where a name was bound: a slot, a path inside its value, the axis (None: not an array's), and the value."""

    slot: Slot
    path: Path
    axis: int | None
    value: Any


@dataclass(slots=True)
class Variadic:
    """What `*name` stands for; `broadcastable` if every use so far was `*#name`."""

    shape: tuple[Any, ...]
    broadcastable: bool


@dataclass(slots=True)
class Pending:
    """An axis under an expression whose names were not all bound when it was met."""

    dim: SymbolicDim
    size: Any
    origin: Origin


@dataclass(slots=True)
class PendingStructure:
    """A structure made of several names, which were not all bound when it was met.

    Attributes:
        unbound: what to say if they never are.
        check: checks it, and says whether it could.
        origin: where it was met.
    """

    unbound: str
    check: Callable[[], bool]
    origin: Origin


class Bindings:
    """The names of one scope.

    Attributes:
        sizes: the size of each single-axis name.
        variadics: the axes of each `*name`.
        structures: the tree definition of each structure name.
        origins: where each name (with its `*`, if any) was bound.
        pending: expressions and structures still to be checked.
        arguments: gives what the holes of expressions may read: the arguments by name, `self` for a record.
        slot: what is being checked now.
        path: where inside its value.
        leaf: which leaf of a `PyTree`, for dims that differ from leaf to leaf.
        lead: the axes that an array here carries in front, in a stack of records, and the scope that names them.
        stack: the same for a record here, whose arrays may differ in it.
        numpy: whether NumPy's arrays stand for JAX's here, as they would under `jit`.
        sparse: whether `None` stands for arrays that are elsewhere, as in the parts of a split record.
    """

    __slots__ = (
        *("arguments", "lead", "leaf", "numpy", "origins", "path", "pending", "sizes", "slot", "sparse", "stack"),
        *("structures", "variadics"),
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
        self.numpy = self.sparse = False

    def snapshot(self) -> tuple[Any, ...]:
        """What `restore` needs to forget everything bound since."""
        return dict(self.sizes), dict(self.variadics), dict(self.structures), dict(self.origins), len(self.pending)

    def restore(self, kept: tuple[Any, ...]) -> None:
        """Goes back to a snapshot: what a member of a union that did not match had bound."""
        self.sizes, self.variadics, self.structures, self.origins = map(dict, kept[:4])
        del self.pending[kept[4] :]


@dataclass(frozen=True)
class Stack:
    """What the arrays of a record that stands in a stack carry in front.

    Attributes:
        leads: the possible ones, what every array carries that rides with the stack first.
        scope: whose names the axes are, where they were declared.
        declared: whether `Batched` says how many there are, so that there are no others.
        role: what the field says that the record is in.
        known: the lead of each role, as far as arrays of it were met.
    """

    leads: tuple[Shape, ...]
    scope: Bindings | None = None
    declared: bool = False
    role: Role = NO_ROLE
    known: dict[Role, Shape] = field(default_factory=dict[Role, Shape])

    def under(self, axes: Shape, scope: Bindings) -> Stack:
        """The stack of what `Batched` declares inside of this one."""
        known = {role: axes.under(lead) for role, lead in self.known.items()}
        return Stack(tuple(axes.under(lead) for lead in self.leads), scope, True, self.role, known)

    def lead_of(self, role: Role) -> Shape:
        """The lead of the arrays of a role."""
        return self.known.get(role, self.leads[0])

    def of(self, role: Role) -> tuple[Shape, ...]:
        """The leads that arrays of a role may have."""
        return (self.known[role],) if role in self.known else self.leads


class Mismatch(Exception):
    """A value that is not what its annotation says; internal, turned into a `ContractError` by `explain`.

    Attributes:
        reason: which sort of mismatch; the keys of the tables in `explain` and `fixes`.
        annotation: what was expected, at `path`.
        value: what was found there.
        bindings: the scope.
        detail: what else there is to say, in words.
        axis: the axis of the value, for a dim.
        dim: the dim that does not fit.
        expected: the size that it should have.
        outer: where the record is whose field does not fit, innermost first.
        inner: the scope of the record whose link does not fit.
        lead: the axes that the array should carry in front.
        stacked: the axes of the stack that its record looks like, and an array of its that carries them, if one does.
        in_use: whether a method of its record is called, so that it is no tree of axes.
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
        self.reason, self.annotation, self.value, self.bindings = reason, annotation, value, bindings
        self.detail, self.axis, self.dim, self.expected = detail, axis, dim, expected
        self.slot, self.path = (bindings.slot, bindings.path) if origin is None else (origin.slot, origin.path)
        self.outer: list[tuple[Slot, Path]] = []
        self.inner: Bindings | None = None
        self.lead = None if bindings.lead is None else bindings.lead[0]
        self.stacked: tuple[tuple[Any, ...], Origin | None] | None = None
        self.in_use = False
        super().__init__(reason)
