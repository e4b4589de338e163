"""Stacks: records whose arrays carry further axes in front, as `vmap` over a constructor gives them.

Whether a record is one, or a stack of such, is a question about all of its fields at once. Field by field it cannot be
answered: `kernel: "*window group_in out"` takes any number of axes, and only `bias: "out"` beside it says how many of
them are the stack's. So the axes in front are *solved for*: none at first, then as many as there may be, until every
field fits, and the records below are held to what was found.

Which arrays ride along is decided by *role*, that is by kind and tags: `vmap(make, out_axes=axes({BatchStat: None, ...:
0}))` gives layers that share their statistics. Arrays of one role all carry the stack's axes, or none of them does;
else a bias that has lost its axis would pass as one that is shared.

Words: the *extra* axes are those of one stack; the *lead* of an array is all that it carries in front, those of the
stacks around it included.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from weft.core.records.kinds import Role, kind_of_array
from weft.core.records.leaves import is_array
from weft.typecheck.language.annotations import ArrayOf, BatchedOf, members_of
from weft.typecheck.language.dims import FixedDim, Shape, VariadicDim
from weft.typecheck.language.forms import is_module
from weft.typecheck.language.objects import unboxed
from weft.typecheck.matching.arrays import check_variadic, settle
from weft.typecheck.matching.bindings import Bindings, Mismatch, Origin, Slot, Stack
from weft.typecheck.matching.compiling import CASES, Check, check_of
from weft.typecheck.matching.policies import Policy

_NONE = Shape(())


@dataclass(frozen=True)
class Row:
    """One field of a record.

    Attributes:
        slot: the field.
        role: what it says of the arrays in it.
        value: what it holds.
        check: the check of its annotation.
        arrays: the arrays of the record's own that are in it.
        rank: how many axes of theirs the annotation names; None if it does not say it of just one array.
    """

    slot: Slot
    role: Role
    value: Any
    check: Check
    arrays: tuple[Any, ...]
    rank: int | None


@dataclass(frozen=True)
class Solution:
    """The dims of one record, and the stack that it is.

    Attributes:
        bindings: the dims of the record, or of each one of the stack.
        axes: the extra axes, `()` for one record.
        stack: what holds for the records below it; None if there is nothing in front.
    """

    bindings: Bindings
    axes: tuple[Any, ...]
    stack: Stack | None


def row(slot: Slot, value: Any, check: Check, role: Role) -> Row:
    """A field as a row to solve."""
    held, annotation = unboxed(value), slot.annotation
    leaves = jax.tree.leaves(held, is_leaf=is_module)
    arrays = tuple(leaf for leaf in leaves if is_array(leaf) and hasattr(leaf, "shape"))  # symbolic sizes have none
    if role.kind is None and arrays:
        role = replace(role, kind=kind_of_array(arrays[0]))
    shapes = [one.shape for one in members_of(annotation) if isinstance(one, ArrayOf)]
    rank = shapes[0].min_rank if len(shapes) == 1 and arrays and arrays[0] is held else None
    return Row(slot, role, value, check, arrays, rank)


def solve(
    rows: Sequence[Row],
    start: Callable[[], Bindings],
    outer: Stack | None = None,
    *,
    shares: bool = True,
    last: bool = True,
) -> Solution:
    """Finds the axes in front with which all fields of a record fit.

    Args:
        rows: the fields.
        start: gives a new scope for the record.
        outer: the stack that the record stands in.
        shares: whether arrays of one role may lack the axes that those of another carry.
        last: whether nothing more will be bound, so that an expression with an unbound name is an error.

    Raises:
        Mismatch: if there are none: what is wrong where the most fields fit.
    """
    attempts: list[_Attempt] = []
    for stack, size in _without_variadic(outer or Stack((_NONE,)), rows):
        for extra in _extras(rows, stack):
            for leads in _leads(rows, stack, extra, shares):
                attempt = _Attempt(stack, extra, leads, start())
                attempt.run(rows, last)
                if attempt.misses:
                    attempts.append(attempt)
                    attempt.forget()
                    continue
                if size is not None:
                    size(attempt.bindings)
                stack.known.update({role: base for role, (base, _) in leads.items()})
                below = attempt.below if outer is not None or extra else None
                return Solution(attempt.bindings, extra, below)
    best = max(attempts, key=lambda attempt: attempt.score)
    try:
        best.again(start()).run(rows, last, until_first=True)
    except Mismatch as miss:
        best.explain(miss)
        raise
    raise AssertionError("what did not fit at first fits now")


def batched_check(spec: BatchedOf, policy: Policy) -> Check | None:
    """The check of something whose arrays all carry declared axes in front."""
    inner = check_of(spec.inner, policy)
    if inner is None:
        return None

    def check(value: Any, bindings: Bindings) -> None:
        with leading(spec.axes, bindings):
            inner(value, bindings)

    return check


CASES[BatchedOf] = batched_check


@contextlib.contextmanager
def leading(axes: Shape, bindings: Bindings) -> Iterator[None]:
    """While it lasts, what is checked is in a stack with declared axes; those of stacks inside stacks add up."""
    kept = bindings.lead, bindings.stack
    bindings.lead = (axes if bindings.lead is None else axes.under(bindings.lead[0]), bindings)
    bindings.stack = (bindings.stack or Stack((_NONE,))).under(axes, bindings)
    try:
        yield
    finally:
        bindings.lead, bindings.stack = kept


def may_be_stack(rows: Sequence[Row]) -> bool:
    """Whether arrays have more axes than their annotations name, so that the record may be a stack."""
    return any(_extras(rows, Stack((_NONE,))))


# For each role the lead that the stack around gives it, and which of the extra axes it carries.
_Leads = dict[Role, tuple[Shape, tuple[Any, ...]]]


class _Attempt:
    """One choice of leads, and what fits under it."""

    def __init__(self, stack: Stack, extra: tuple[Any, ...], leads: _Leads, bindings: Bindings):
        self.stack, self.extra, self.leads, self.bindings = stack, extra, leads, bindings
        self.misses: list[Mismatch] = []
        self.fitted: list[Row] = []
        # What names the axes is a scope further out, which a choice that does not fit leaves as it was.
        self.kept = None if stack.scope is None else stack.scope.snapshot()
        known = {role: _then(*lead) for role, lead in leads.items()}
        possible = tuple(_then(lead, axes) for lead in stack.leads for axes in _choices(extra))
        self.below = Stack(possible, stack.scope, False, stack.role, {**stack.known, **known})

    def forget(self) -> None:
        """Unbinds the names of the stack around that this choice has bound."""
        if self.stack.scope is not None and self.kept is not None:
            self.stack.scope.restore(self.kept)

    def again(self, bindings: Bindings) -> _Attempt:
        """The same choice, with nothing bound."""
        return _Attempt(self.stack, self.extra, self.leads, bindings)

    def run(self, rows: Sequence[Row], last: bool, *, until_first: bool = False) -> None:
        """Checks every field, those after one that does not fit too, unless that one is wanted."""
        bindings = self.bindings
        in_stack = self.below.leads != (_NONE,)
        for one in rows:
            kept = bindings.snapshot()
            bindings.slot, bindings.path = one.slot, ()
            lead = self.below.lead_of(one.role)
            bindings.lead = (lead, self.below.scope or bindings) if lead.dims else None
            bindings.stack = replace(self.below, role=one.role) if in_stack else None
            try:
                one.check(one.value, bindings)
            except Mismatch as miss:
                if until_first:
                    raise
                self.misses.append(miss)
                bindings.restore(kept)
            else:
                self.fitted.append(one)
        bindings.lead, bindings.stack = None, None
        if not self.misses:
            try:
                settle(bindings, finally_=last)
            except Mismatch as miss:
                if until_first:
                    raise
                self.misses.append(miss)

    @property
    def score(self) -> tuple[int, bool]:
        """How near it came: by the fields that fit, then a size that is wrong is nearer than a rank."""
        return len(self.fitted), self.misses[0].reason in ("size", "axes", "link", "dtype")

    def explain(self, miss: Mismatch) -> None:
        """Adds to a mismatch in a stack that was found the axes of it, and a field that shows them."""
        lead = self.below.leads[0]
        if miss.stacked is not None or self.below.scope is not None or not lead.dims:
            return
        axes = tuple(dim.size for dim in lead.dims if isinstance(dim, FixedDim))
        carrying = (one for one in self.fitted if one.arrays and self.below.known[one.role] == lead)
        witness = next(carrying, None)
        miss.stacked = axes, None if witness is None else Origin(witness.slot, (), 0, witness.arrays[0])
        miss.detail = miss.detail or f"in a stack with the leading axes ({','.join(map(str, axes))})"


def _then(lead: Shape, axes: tuple[Any, ...]) -> Shape:
    return Shape((*lead.dims, *map(FixedDim, axes)), lead.variadic)


def _choices(axes: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """All of some axes, then what is left without those over which an array is shared."""
    for count in range(len(axes), -1, -1):
        yield from itertools.combinations(axes, count)


def _extras(rows: Sequence[Row], stack: Stack) -> Iterator[tuple[Any, ...]]:
    """The extra axes that there may be: none, then one, two, ...; the sizes that most arrays begin with come first."""
    yield ()
    # What is left of each array behind the axes of the stack around it, and how much of that its annotation asks for.
    rests = [
        (tuple(array.shape[len(lead.dims) :]), one.rank or 0, one.rank is None)
        for one in rows
        for array in one.arrays
        for lead in stack.of(one.role)
    ]
    known = [len(rest) - rank for rest, rank, unknown in rests if not unknown]
    most = max(known or [len(rest) for rest, _, _ in rests], default=0)
    if stack.declared:
        return
    for count in range(1, most + 1):
        # Where as many arrays say one as say another, the later ones are taken to be right: errors go by field order.
        found = Counter(rest[:count] for rest, rank, _ in reversed(rests) if len(rest) - rank >= count)
        yield from (axes for axes, _ in found.most_common())


def _leads(rows: Sequence[Row], stack: Stack, extra: tuple[Any, ...], shares: bool) -> Iterator[_Leads]:
    """What the arrays of each role may carry: all that there is, then less, as far as arrays may be shared."""
    roles = list(dict.fromkeys(one.role for one in rows if one.arrays))
    options = [
        [(base, axes) for base in stack.of(role) for axes in (_choices(extra) if shares else (extra,))]
        for role in roles
    ]
    for chosen in itertools.product(*options):
        if not extra or any(axes == extra for _, axes in chosen):
            yield dict(zip(roles, chosen, strict=True))


def _without_variadic(stack: Stack, rows: Sequence[Row]) -> Iterator[tuple[Stack, Callable[[Bindings], None] | None]]:
    """The stacks that `Batched[..., "*stages"]` may stand for, with what binds the name once one of them fits."""
    lead, scope = stack.leads[0], stack.scope
    shapes = [tuple(array.shape) for one in rows for array in one.arrays]
    if lead.variadic is None or scope is None or not shapes:  # those without arrays leave it to the records below
        yield stack, None
        return
    at, dim = lead.variadic, lead.dims[lead.variadic]
    assert isinstance(dim, VariadicDim)
    for count in range(max(map(len, shapes)) - lead.min_rank + 1):
        for axes, _ in Counter(shape[at : at + count] for shape in shapes).most_common():
            dims = (*lead.dims[:at], *map(FixedDim, axes), *lead.dims[at + 1 :])

            def bind(bindings: Bindings, axes: tuple[Any, ...] = axes) -> None:
                check_variadic(dim, axes, at, None, scope, lead)

            yield Stack((Shape(dims),), scope, True, stack.role), bind
