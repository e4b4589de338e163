"""Checks a record that is an argument or part of one: its class, its fields in their scope, its linked dims.

The policy says which scope the fields have: a Module's names are its own (two layers of a class differ in size), those
of a plain record may be the caller's. `Dims` on a field links a child's dims to the parent's. A record may be a *stack*
(see `stacks`), which `Batched[...]` declares. An undeclared stack may be stored, passed on and rebuilt, but not used as
a single record.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from typing import Any, cast

from weft.core.edge.names import is_generated
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import CheckedRecord, RecordOf
from weft.typecheck.language.dims import Dims, NamedDim
from weft.typecheck.language.forms import TYPEDDICT, records_in
from weft.typecheck.language.signatures import shapes_in
from weft.typecheck.matching.arrays import check_axes
from weft.typecheck.matching.bindings import Bindings, Mismatch, Origin, Slot
from weft.typecheck.matching.compiling import CASES, Check, at
from weft.typecheck.matching.policies import RUN_TIME, Policy
from weft.typecheck.matching.record_plans import RecordPlan, record_plan, shell_check
from weft.typecheck.matching.scopes import (
    bind_numbers,
    dims_of,
    numbers_of,
    overmapped,
    rows_of,
    run_fields,
    scope_of,
    solution_of,
    stack_of,
    start,
)
from weft.typecheck.matching.stacks import Solution, may_be_stack, solve


def record_check(spec: RecordOf, policy: Policy) -> Check:
    """The check of a record; of a mutable object only the class is checked at run time, as other code may change it."""
    form = spec.form
    if form.mutable and not policy.opens_objects:
        return shell_check(CheckedRecord(spec), policy)
    within = policy if form.plain else policy.within

    def check(value: Any, bindings: Bindings) -> None:
        record = form.instance_in(spec.cls, value)
        if record is None:
            raise Mismatch("type", spec, value, bindings)
        plan = record_plan(spec.cls if form is TYPEDDICT else type(value), within)
        if form is TYPEDDICT:
            missing = sorted(cast(Any, spec.cls).__required_keys__ - value.keys())
            if missing:
                raise Mismatch("keys", spec, value, bindings, detail=", ".join(missing))
        if form.plain and policy.shares:  # its names belong to the scope around it
            values = form.values(value)
            for field in plan.fields:
                if field.slot.name in values:
                    at(field.slot.name, field.whole, values[field.slot.name], bindings)
            return
        try:
            inner = _scope_inside(spec, value, plan, bindings)
        # The error then says in which field of which record the mismatch is, from the inside out.
        except Mismatch as miss:
            if miss.bindings is not bindings:
                miss.outer.append((bindings.slot, bindings.path))
            raise
        if spec.dims is not None:
            if record is not value:  # a wrapper such as a mapped layer has dims of its own
                plan = record_plan(type(record), within)
                inner = _scope_inside(spec, record, plan, bindings)
            _check_links(spec, spec.dims, plan, record, inner, bindings)

    return check


CASES[RecordOf] = record_check


# The roles in which an undeclared stack may stand: a field, and a function's result. An argument annotated as a single
# record that gets a stack was most likely meant to be mapped over with `vmap`.
MAY_BE_STACKED = ("field", "return", "yield")


def _scope_inside(spec: RecordOf, value: Any, plan: RecordPlan, outer: Bindings) -> Bindings:
    """The scope of a record inside a value, after checking everything in the record."""
    values, sparse = plan.form.values(value), plan.form.partial

    def begin() -> Bindings:
        inner = start(value, plan, values, outer.slot, sparse=sparse)
        # A record stores arrays as they are, so a NumPy array in an equinox Module stays one and must not pass for
        # JAX's.
        inner.numpy, inner.met = outer.numpy and not sparse, outer.met
        return inner

    if outer.stack is None:
        # A single record is tried first, because it is the common case and solving for leading axes is slow.
        inner = begin()
        try:
            run_fields(plan, plan.inside, values, inner, whole=True)
            return _with_numbers(inner, value, plan)
        except Mismatch as miss:
            rows = rows_of(plan, plan.inside, values, None, sparse, whole=True)
            # A mismatch inside a child is reported as it is, unless the record may be a stack and the child a part of
            # it.
            if miss.bindings is not inner and not may_be_stack(rows):
                raise
    rows = rows_of(plan, plan.inside, values, outer.stack, sparse, whole=True)
    try:
        solution = solve(rows, begin, outer.stack, last=plan.policy.settles)
    except Mismatch as nearest:
        raise (overmapped(value, plan, outer) if outer.stack is None else None) or nearest from None
    if outer.slot.role not in MAY_BE_STACKED:
        refuse_stack(solution, value, plan, outer)
    return _with_numbers(solution.bindings, value, plan)


def _with_numbers(inner: Bindings, value: Any, plan: RecordPlan) -> Bindings:
    if plan.policy.integers == "called like a dim":  # a link may name any integer of the record
        bind_numbers(inner, numbers_of(value, plan), plan.cls)
    return inner


def refuse_stack(solution: Solution, value: Any, plan: RecordPlan, bindings: Bindings) -> None:
    """Refuses a stack where a single record is annotated.

    Raises:
        Mismatch: if the solution has leading axes.
    """
    # A method of an NNX object may scan over the stack that the object itself is (`nnx.scan`).
    if solution.axes and not plan.form.mutable:
        raise Mismatch("batched", RecordOf(type(value)), value, bindings, expected=solution.axes)


def _check_links(spec: RecordOf, dims: Dims, plan: RecordPlan, value: Any, inner: Bindings, outer: Bindings) -> None:
    """Compares each dim of a child record with the parent's dim that it is linked to, and binds that if it is free."""
    for child, dim in dims.links:
        if child in inner.sizes:
            was_free = isinstance(dim, NamedDim) and dim.name not in outer.sizes
            try:
                check_axes((dim,), (inner.sizes[child],), 0, value, outer, spec)
            except Mismatch as miss:
                miss.reason, miss.detail, miss.inner = "link", child, inner
                raise
            if isinstance(dim, NamedDim) and was_free:  # the origin names the array of the child that gave the size
                outer.origins[dim.name] = Origin(outer.slot, (*outer.path, child), None, inner.origins[child])
            continue
        # The child may lack the array that binds the dim, but one of its annotations has to name the dim.
        known = {slot.name for slot in plan.config}
        for annotation in (field.slot.annotation for field in plan.fields):
            known |= {name for shape in shapes_in(annotation) for name in shape.names}
            links = (part.dims.links for part in annotation.walk() if isinstance(part, RecordOf) and part.dims)
            known |= {linked.name for _, linked in itertools.chain(*links) if isinstance(linked, NamedDim)}
        if child not in known:
            raise AnnotationError(
                f"{outer.slot.name}: Dims({str(dims)!r}) links {child!r}, but the fields of {spec.cls.__qualname__} "
                f"bind {', '.join(sorted(known)) or 'no dims'}"
            )


def has_generated_init(cls: Any) -> bool:
    """Whether a class has a generated `__init__` that takes the fields, as a dataclass has."""
    code = getattr(cls.__init__, "__code__", None)
    return code is not None and is_generated(code)


def check_instance(
    value: Any, policy: Policy, *, whole: bool = False, arguments: Mapping[str, Any] | None = None
) -> Solution:
    """Checks a record against its own annotations, with everything inside; returns its dims.

    A record that lacks some leaves, such as a part of a split record or a gradient, passes, unless `whole` says that
    it was just constructed. A stack of records passes, unless a handwritten constructor made it.

    Args:
        value: the record.
        policy: how it is matched.
        whole: whether the record was just constructed.
        arguments: the arguments of its constructor; see `start`.

    Raises:
        Mismatch: for the first field that does not fit its annotation, or contradicts another field.
    """
    cls = type(value)
    slot = Slot("field", "", cls, RecordOf(cls))
    plan = record_plan(cls, policy)
    sparse = plan.form.partial and not whole
    solution = solution_of(
        value, plan, plan.inside, whole=True, sparse=sparse, shares=not whole, arguments=arguments, slot=slot
    )
    # A handwritten `__init__` makes one record; a generated one may be called by code that rebuilds a stack.
    if whole and not has_generated_init(cls):
        refuse_stack(solution, value, plan, Bindings(slot))
    _with_numbers(solution.bindings, value, plan)
    return solution


def dims_of_instance(value: Any, policy: Policy) -> Bindings:
    """The dims of a record, or of each record of a stack; if fields contradict each other, only dims that fit."""
    try:
        return check_instance(value, policy).bindings
    except (Mismatch, AnnotationError):
        return _with_numbers(dims_of(value, policy), value, record_plan(type(value), policy))


def mismatch_of(record: Any, plan: RecordPlan, bindings: Bindings) -> Mismatch:
    """The mismatch of a record that is not a single one: it is a stack, lacks axes, or has a wrong field."""
    try:
        solution = stack_of(record, plan)
    except Mismatch as nearest:
        return overmapped(record, plan, bindings) or nearest
    return Mismatch("batched", RecordOf(type(record)), record, bindings, expected=solution.axes)


def check_rebuilt(tree: Any, policy: Policy = RUN_TIME) -> Mismatch | None:
    """The first mismatch in the records of a tree, each record taken by itself or as a stack; None if all fit."""
    for record in records_in(tree):
        with contextlib.suppress(AnnotationError):  # an unreadable annotation was reported when the record was made
            plan = record_plan(type(record), policy)
            try:
                scope_of(record, plan)
            except Mismatch:
                slot = Slot("value", type(record).__name__, None, RecordOf(type(record)))
                miss = mismatch_of(record, plan, Bindings(slot))
                if miss.reason != "batched":
                    return miss
    return None
