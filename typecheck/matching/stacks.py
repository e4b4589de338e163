"""Stacks: records whose arrays have further leading axes, as `vmap` over a constructor makes them.

Whether a record is a single one or a stack is a question about all of its fields at once. No field alone answers it:
`kernel: "*window group_in out"` accepts any number of axes, and only `bias: "out"` shows how many of them belong to the
stack. So the leading axes are *solved for*: none at first, then as many as possible, until every field fits. The
records inside are then checked for the same axes.

Which arrays have the leading axes is decided by *role*, that is by kind and tags: `vmap(make, out_axes=axes({BatchStat:
None, ...: 0}))` makes layers that share statistics. All arrays of a role have the stack's axes, or none of them has;
otherwise a bias that lost its axis would pass as a shared one.

Words: the *extra* axes are those of one stack; the *lead* of an array is all of its leading axes, those of stacks
around it included.
"""

from __future__ import annotations

import contextlib
import functools
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
from weft.typecheck.language.forms import is_module, unboxed
from weft.typecheck.matching.arrays import check_variadic, settle
from weft.typecheck.matching.bindings import Bindings, Mismatch, Origin, Slot, Stack
from weft.typecheck.matching.compiling import CASES, Check, check_of
from weft.typecheck.matching.policies import Policy

_NONE = Shape(())


@dataclass(frozen=True)
class Row:
    """One field of a record, as `solve` needs it.

    Attributes:
        slot: the field.
        role: the kind and tags of the arrays in the field.
        value: the field's value.
        check: the check of its annotation.
        arrays: the arrays in the field that are the record's own.
        rank: how many axes the annotation names; None if it is not about exactly one array.
    """

    slot: Slot
    role: Role
    value: Any
    check: Check
    arrays: tuple[Any, ...]
    rank: int | None


@dataclass(frozen=True)
class Solution:
    """The dims of a record, and the stack that it is, if any.

    Attributes:
        bindings: the dims of the record, or of each record of the stack.
        axes: the extra axes; `()` for a single record.
        stack: the stack around the records inside; None if there are no leading axes.
    """

    bindings: Bindings
    axes: tuple[Any, ...]
    stack: Stack | None


def row(slot: Slot, value: Any, check: Check, role: Role) -> Row:
    """A field as a row for `solve`."""
    content, annotation = unboxed(value), slot.annotation
    leaves = jax.tree.leaves(content, is_leaf=is_module)
    arrays = tuple(leaf for leaf in leaves if is_array(leaf) and hasattr(leaf, "shape"))  # a symbolic size has no shape
    if role.kind is None and arrays:
        role = replace(role, kind=kind_of_array(arrays[0]))
    shapes = [member.shape for member in members_of(annotation) if isinstance(member, ArrayOf)]
    rank = shapes[0].min_rank if len(shapes) == 1 and arrays and arrays[0] is content else None
    return Row(slot, role, value, check, arrays, rank)


def solve(
    rows: Sequence[Row],
    start: Callable[[], Bindings],
    outer: Stack | None = None,
    *,
    shares: bool = True,
    last: bool = True,
) -> Solution:
    """Finds leading axes with which all fields of a record fit.

    Args:
        rows: the fields.
        start: makes a new scope for the record.
        outer: the stack around the record.
        shares: whether the arrays of one role may lack axes that those of another role have.
        last: whether nothing more will be bound, so that an expression with an unbound name is an error.

    Raises:
        Mismatch: if no leading axes fit: the mismatch of the attempt in which the most fields fit.
    """
    attempts: list[_Attempt] = []
    for stack, bind in _without_variadic(outer or Stack((_NONE,)), rows):
        for extra in _extras(rows, stack):
            for leads in _leads(rows, stack, extra, shares):
                attempt = _Attempt(stack, extra, leads, start())
                attempt.run(rows, last)
                if attempt.misses:
                    attempts.append(attempt)
                    attempt.forget()
                    continue
                if bind is not None:
                    bind()
                # Records inside must have the same leading axes by role, so that `scale` cannot be stacked where `bias`
                # is not.
                stack.known.update({role: base for role, (base, _) in leads.items()})
                below = attempt.below if outer is not None or extra else None
                return Solution(attempt.bindings, extra, below)
    best = max(attempts, key=lambda attempt: attempt.score)
    try:
        # The best attempt runs once more to raise its first mismatch, with bindings as they were at that point.
        best.again(start()).run(rows, last, until_first=True)
    except Mismatch as miss:
        best.explain(miss)
        raise
    raise AssertionError("the leading axes that did not fit at first fit now")


def batched_check(spec: BatchedOf, policy: Policy) -> Check | None:
    """The check of a value whose arrays all have declared leading axes; None if nothing inside is checked."""
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
    """In the `with` block, checks expect these leading axes behind those of the stacks around."""
    before = bindings.lead, bindings.stack
    # Nested `Batched` add up: `Batched[Batched[X, "a"], "b"]` has the axes of both in front.
    bindings.lead = (axes if bindings.lead is None else axes.under(bindings.lead[0]), bindings)
    bindings.stack = (bindings.stack or Stack((_NONE,))).under(axes, bindings)
    try:
        yield
    finally:
        bindings.lead, bindings.stack = before


def may_be_stack(rows: Sequence[Row]) -> bool:
    """Whether arrays have more axes than their annotations name, so that the record may be a stack."""
    return any(_extras(rows, Stack((_NONE,))))


# By role: the leading axes from the stack around the record, and the extra axes that arrays of the role have.
_Leads = dict[Role, tuple[Shape, tuple[Any, ...]]]


class _Attempt:
    """One choice of leading axes, and the fields that fit under it.

    Attributes:
        misses: the mismatches of the fields that do not fit.
        fitted: the fields that fit.
        snapshot: the names in the scope around the stack before the attempt.
        below: the stack that the records inside are part of under this choice.
    """

    def __init__(self, stack: Stack, extra: tuple[Any, ...], leads: _Leads, bindings: Bindings):
        self.stack, self.extra, self.leads, self.bindings = stack, extra, leads, bindings
        self.misses: list[Mismatch] = []
        self.fitted: list[Row] = []
        # The names of the axes belong to an outer scope, which an attempt that fails must leave unchanged.
        self.snapshot = None if stack.scope is None else stack.scope.snapshot()
        known = {role: _then(*lead) for role, lead in leads.items()}
        possible = tuple(_then(lead, axes) for lead in stack.leads for axes in _choices(extra))
        self.below = Stack(possible, stack.scope, declared=False, role=stack.role, known={**stack.known, **known})

    def forget(self) -> None:
        """Unbinds the names that this attempt has bound in the scope around the stack."""
        if self.stack.scope is not None and self.snapshot is not None:
            self.stack.scope.restore(self.snapshot)

    def again(self, bindings: Bindings) -> _Attempt:
        """The same choice of leading axes, with nothing bound."""
        return _Attempt(self.stack, self.extra, self.leads, bindings)

    def run(self, rows: Sequence[Row], last: bool, *, until_first: bool = False) -> None:
        """Checks every field, continuing after a mismatch to count the fields that fit, unless `until_first`."""
        bindings = self.bindings
        in_stack = self.below.leads != (_NONE,)
        for row in rows:
            snapshot = bindings.snapshot()
            bindings.slot, bindings.path = row.slot, ()
            lead = self.below.lead_of(row.role)
            bindings.lead = (lead, self.below.scope or bindings) if lead.dims else None
            bindings.stack = replace(self.below, role=row.role) if in_stack else None
            try:
                row.check(row.value, bindings)
            except Mismatch as miss:
                if until_first:
                    raise
                self.misses.append(miss)
                bindings.restore(snapshot)
            else:
                self.fitted.append(row)
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
        """How close the attempt came: the number of fitting fields, then whether a size rather than a rank is wrong."""
        return len(self.fitted), self.misses[0].reason in ("size", "axes", "link", "dtype")

    def explain(self, miss: Mismatch) -> None:
        """Adds to a mismatch in an undeclared stack the axes of the stack, and a field that shows them.

        Nothing is added if an inner stack has explained the mismatch, if the axes were declared, or if there are none.
        """
        lead = self.below.leads[0]
        if miss.stacked is not None or self.below.scope is not None or not lead.dims:
            return
        axes = tuple(dim.size for dim in lead.dims if isinstance(dim, FixedDim))
        carrying = (row for row in self.fitted if row.arrays and self.below.known[row.role] == lead)
        witness = next(carrying, None)
        shown = None if witness is None else Origin(slot=witness.slot, path=(), axis=0, value=witness.arrays[0])
        miss.stacked = axes, shown
        miss.detail = miss.detail or f"in a stack with the leading axes ({','.join(map(str, axes))})"


def _then(lead: Shape, axes: tuple[Any, ...]) -> Shape:
    return Shape((*lead.dims, *map(FixedDim, axes)), lead.variadic)


def _choices(axes: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The extra axes that an array may have: all of them first, then fewer, as an array may be shared over some."""
    for count in range(len(axes), -1, -1):
        yield from itertools.combinations(axes, count)


def _extras(rows: Sequence[Row], stack: Stack) -> Iterator[tuple[Any, ...]]:
    """The extra axes to try: none, then one, two, ...; sizes that most arrays begin with come first."""
    yield ()
    # Of each array: its axes behind those of outer stacks, how many the annotation names, and whether that is unknown.
    rests = [
        (tuple(array.shape[len(lead.dims) :]), row.rank or 0, row.rank is None)
        for row in rows
        for array in row.arrays
        for lead in stack.of(row.role)
    ]
    known = [len(rest) - rank for rest, rank, unknown in rests if not unknown]
    most = max(known or [len(rest) for rest, _, _ in rests], default=0)
    if stack.declared:
        return
    for count in range(1, most + 1):
        # In a tie the later fields win, so that the error is about an earlier field: errors follow the order of fields.
        counts = Counter(rest[:count] for rest, rank, _ in reversed(rests) if len(rest) - rank >= count)
        yield from (axes for axes, _ in counts.most_common())


def _leads(rows: Sequence[Row], stack: Stack, extra: tuple[Any, ...], shares: bool) -> Iterator[_Leads]:
    """The leading axes that arrays of each role may have: all axes first, then fewer, as far as roles may share."""
    roles = list(dict.fromkeys(row.role for row in rows if row.arrays))
    options = [
        [(base, axes) for base in stack.of(role) for axes in (_choices(extra) if shares else (extra,))]
        for role in roles
    ]
    for chosen in itertools.product(*options):
        # At least one role must have all extra axes, or a smaller set of extra axes would be the same choice.
        if not extra or any(axes == extra for _, axes in chosen):
            yield dict(zip(roles, chosen, strict=True))


def _without_variadic(stack: Stack, rows: Sequence[Row]) -> Iterator[tuple[Stack, Callable[[], None] | None]]:
    """Stacks with single axes in place of the `*stages` of `Batched[..., "*stages"]`, and how to bind that name."""
    lead, scope = stack.leads[0], stack.scope
    shapes = [tuple(array.shape) for row in rows for array in row.arrays]
    if lead.variadic is None or scope is None or not shapes:  # without arrays here, those of the children decide
        yield stack, None
        return
    at, dim = lead.variadic, lead.dims[lead.variadic]
    assert isinstance(dim, VariadicDim)
    for count in range(max(map(len, shapes)) - lead.min_rank + 1):
        for axes, _ in Counter(shape[at : at + count] for shape in shapes).most_common():
            dims = (*lead.dims[:at], *map(FixedDim, axes), *lead.dims[at + 1 :])
            bind = functools.partial(check_variadic, dim, axes, at, None, scope, lead)
            yield Stack((Shape(dims),), scope, declared=True, role=stack.role), bind
