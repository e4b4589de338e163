"""Scopes: the dims that the fields of one record bind.

Every record is a scope of its own: its fields bind the dims of this instance. Integers among the fields do so as well
(`Policy.integers`): `width: int` is the size of the dim `width`.

`scope_of` is fast, and expects a single record. `solution_of` finds out whether the record is a *stack* (see `stacks`),
and over which axes. `dims_of` never fails: it returns the dims that fit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from weft.core.records.kinds import NO_ROLE, Role
from weft.core.records.leaves import NUMBERS, is_array
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import ArrayOf, Instance, RecordOf
from weft.typecheck.language.forms import is_box_class, is_size, records_in, sizes_of_object
from weft.typecheck.language.signatures import names_of_fields
from weft.typecheck.matching.arrays import settle
from weft.typecheck.matching.bindings import Bindings, Mismatch, Origin, Slot, Stack
from weft.typecheck.matching.policies import Policy
from weft.typecheck.matching.record_plans import FieldCheck, RecordPlan, record_plan
from weft.typecheck.matching.stacks import Row, Solution, row, solve

NO_SLOT = Slot("value", "", None, Instance(object))


def scope_of(record: Any, plan: RecordPlan, *, everything: bool = False, sparse: bool = True) -> Bindings:
    """The scope that the fields of a record make.

    Args:
        record: the record.
        plan: the plan of the record's class.
        everything: whether to check all fields, or only the fields that bind dims.
        sparse: whether `None`, an axis or a spec may stand for an array, as in the parts of a split record.

    Raises:
        Mismatch: at the first field that does not fit.
    """
    values = plan.form.values(record)
    bindings = start(record, plan, values, NO_SLOT, sparse=sparse)
    run_fields(plan, plan.fields if everything else plan.binding, values, bindings, whole=False)
    return bindings


def number_for_array(record: Any, plan: RecordPlan) -> Mismatch | None:
    """The mismatch of a record that has a number where a field is annotated as an array; None if there is none.

    As a tree of axes for `vmap` such a record is right; a method would compute with the number.
    """
    if plan.form.mutable:
        return None
    values = plan.form.values(record)
    for field in plan.fields:
        value = values.get(field.slot.name)
        if field.array is not None and type(value) in NUMBERS:
            try:
                field.own(value, start(record, plan, values, field.slot, sparse=False))
            except Mismatch as miss:
                miss.in_use = True
                return miss
    return None


def dims_of(record: Any, policy: Policy) -> Bindings:
    """The dims that the fields of a record bind; fields that do not fit are left out, as another check reports them."""
    plan = record_plan(type(record), policy)
    values = plan.form.values(record)
    bindings = start(record, plan, values, NO_SLOT, sparse=True)
    for field in plan.binding:
        snapshot = bindings.snapshot()
        try:
            run_fields(plan, (field,), values, bindings, whole=False)
        except (Mismatch, AnnotationError):
            bindings.restore(snapshot)
    return bindings


def start(
    record: Any,
    plan: RecordPlan,
    values: Mapping[str, Any],
    slot: Slot,
    arguments: Mapping[str, Any] | None = None,
    *,
    sparse: bool,
) -> Bindings:
    """A new scope for a record, in which integers already bind the dims of their names.

    In a proof the constructor arguments bind the dims of their names, too: `Linear(inp, out)` and a field `"inp out"`.
    """
    bindings = Bindings(slot, lambda: {**values, "self": record})
    bindings.sparse = sparse
    if plan.policy.integers == "declared":
        # Integers come first, so an array that contradicts `width: int` is reported with the field as its origin.
        for field in plan.config:
            value = values.get(field.name)
            if type(value) is int:
                bindings.sizes[field.name] = value
                bindings.origins[field.name] = Origin(field, (), None, value)
    else:
        named = names_of_fields(plan.cls)
        numbers = {**(arguments or {}), **numbers_of(record, plan)}
        bind_numbers(bindings, {name: number for name, number in numbers.items() if name in named}, plan.cls)
    return bindings


def numbers_of(record: Any, plan: RecordPlan) -> dict[str, Any]:
    """The integers among the fields of a record; for an object, its integer attributes and constructor arguments."""
    numbers = {name: value for name, value in plan.form.values(record).items() if is_size(value)}
    return {**numbers, **sizes_of_object(record)} if plan.form.mutable else numbers


def bind_numbers(bindings: Bindings, values: Mapping[str, Any], owner: type | None = None) -> None:
    """Binds dims to the integers of their names, as a reader would, where no array has bound them."""
    for name, value in values.items():
        if name not in bindings.sizes and is_size(value):
            slot = bindings.slot if owner is None else Slot("config", name, owner, Instance(int))
            bindings.sizes[name] = value
            bindings.origins[name] = Origin(slot, (), None, value)


def run_fields(
    plan: RecordPlan, checks: tuple[FieldCheck, ...], values: Mapping[str, Any], bindings: Bindings, *, whole: bool
) -> None:
    """Checks some fields of a record, in order.

    Raises:
        Mismatch: at the first field that does not fit.
    """
    for field in checks:
        name = field.slot.name
        # A field may be unset, as long as the constructor has not assigned it.
        if name not in values:
            continue
        value = values[name]
        if bindings.sparse and _is_absent(field, value):
            continue
        bindings.slot = field.slot
        (field.whole if whole else field.own)(value, bindings)
    if bindings.pending:
        settle(bindings, finally_=plan.policy.settles)


def _is_absent(field: FieldCheck, value: Any) -> bool:
    """Whether a field of a sparse record has no array to check: it holds `None`, or an axis or spec instead."""
    return value is None or (field.array is not None and not is_array(value) and not is_box_class(type(value)))


def solution_of(
    record: Any,
    plan: RecordPlan,
    checks: tuple[FieldCheck, ...],
    outer: Stack | None = None,
    *,
    whole: bool = False,
    sparse: bool = True,
    shares: bool = True,
    arguments: Mapping[str, Any] | None = None,
    slot: Slot = NO_SLOT,
) -> Solution:
    """The dims of a record, and the stack that the record is, if any.

    Args:
        record: the record.
        plan: the plan of the record's class.
        checks: the fields to check.
        outer: the stack around the record.
        whole: whether the insides of child records are checked as well.
        sparse, arguments: as in `scope_of`, `start`.
        shares: as in `solve`.
        slot: the argument or field that is being checked.

    Raises:
        Mismatch: if the fields fit neither a single record nor a stack.
    """
    values = plan.form.values(record)
    rows = rows_of(plan, checks, values, outer, sparse, whole=whole)
    return solve(
        rows,
        lambda: start(record, plan, values, slot, arguments, sparse=sparse),
        outer,
        shares=shares,
        last=plan.policy.settles,
    )


def stack_of(
    record: Any,
    plan: RecordPlan,
    outer: Stack | None = None,
    *,
    everything: bool = False,
    sparse: bool = True,
    shares: bool = True,
) -> Solution:
    """The stack that a record is. Asked if the fields do not fit a single record, and of records inside a stack.

    Args:
        record: the record.
        plan: the plan of the record's class.
        outer: the stack around the record.
        everything, sparse: as in `scope_of`.
        shares: as in `solve`.

    Raises:
        Mismatch: if it is no stack, or a record inside it is not part of the same stack.
    """
    checks = plan.fields if everything else plan.binding
    solution = solution_of(record, plan, checks, outer, sparse=sparse, shares=shares)
    # The records inside have the stack's leading axes, too.
    stack = solution.stack
    for name, value in plan.form.values(record).items() if stack is not None else ():
        assert stack is not None
        inside = replace(stack, role=_role(plan, name, value).inside(stack.role))
        for child in records_in(value, inside=False):
            with contextlib.suppress(AnnotationError):  # an unreadable annotation was reported when the record was made
                stack_of(child, record_plan(type(child), plan.policy), inside)
    return solution


def rows_of(
    plan: RecordPlan,
    checks: tuple[FieldCheck, ...],
    values: Mapping[str, Any],
    outer: Stack | None,
    sparse: bool,
    *,
    whole: bool,
) -> list[Row]:
    """Fields of a record as the rows that `solve` takes."""
    around = NO_ROLE if outer is None else outer.role
    return [
        row(field.slot, value, field.whole if whole else field.own, _role(plan, field.slot.name, value).inside(around))
        # In a sparse record, a field without an array has nothing that could contradict a stack.
        for field in checks
        for value in ([values[field.slot.name]] if field.slot.name in values else [])
        if not (sparse and _is_absent(field, value))
    ]


def _role(plan: RecordPlan, name: str, value: Any) -> Role:
    """The kind and tags of a field's arrays."""
    # The class of a Variable is its kind: `BatchStat` may be shared where `Param` is stacked.
    if is_box_class(type(value)):
        return Role(cast(Any, type(value)))
    return plan.form.roles(plan.cls).get(name, NO_ROLE)


def missing_axes(record: Any, plan: RecordPlan) -> int:
    """How many axes all of a record's own arrays lack, as when a transform maps over a record that is no stack."""
    values = plan.form.values(record)
    rows: list[tuple[ArrayOf | None, Any]] = [(field.array, values.get(field.slot.name)) for field in plan.binding]
    counts = {
        array.shape.min_rank - len(value.shape)
        for array, value in rows
        if array is not None and is_array(value) and array.shape.variadic is None
    }
    # All arrays must lack the same number: if they differ, a single field is wrong, and no transform took axes off.
    return counts.pop() if len(counts) == 1 and min(counts) > 0 else 0


def overmapped(record: Any, plan: RecordPlan, bindings: Bindings) -> Mismatch | None:
    """The mismatch of a record whose arrays all lack the same number of axes; None for any other record."""
    missing = missing_axes(record, plan)
    return Mismatch("overmapped", RecordOf(type(record)), record, bindings, expected=missing) if missing else None
