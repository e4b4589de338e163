"""The checks of records: fields at construction, on rebuilding, as arguments, and as the scope of their methods.

Every record is a scope of its own: its fields bind the dims of this one instance. Plain `int` fields bind dims as well
(the *config*): `width: int` is the size of the dim `width`. A child's dims are linked to its parent's where the field
says so, by `Dims`.

A record may be a *stack*: its arrays carry the same extra leading axes (see `stacks`). `Batched[...]` declares that.
Where it is not declared, a stack may be held, passed around and rebuilt, but not used as a single record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
from weft.core.records.configuration import field_values
from weft.core.records.kinds import NO_ROLE, Role, field_roles
from weft.core.records.leaves import is_array
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import (
    Annotation,
    ArrayOf,
    BatchedOf,
    Instance,
    MappingOf,
    OneOf,
    RecordOf,
    SequenceOf,
    TupleOf,
)
from weft.typecheck.language.batched import Dims
from weft.typecheck.language.dims import NamedDim
from weft.typecheck.language.objects import attributes_of
from weft.typecheck.matching.arrays import Check, check_axes, settle
from weft.typecheck.matching.bindings import Bindings, Mismatch, Origin, Slot
from weft.typecheck.matching.record_plans import FieldCheck, RecordPlan, Shell, record_plan, shell_check
from weft.typecheck.matching.stacks import Row, Solution, Stack, may_be_stack, row, solve


def fields_in(record: Any) -> Mapping[str, Any]:
    """The values of a record's fields that are set, by name."""
    if isinstance(record, eqx.Module):
        return field_values(record)
    if isinstance(record, dict):
        return record
    if isinstance(record, tuple):
        return record._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    return {name: getattr(record, name) for name in record.__dataclass_fields__ if hasattr(record, name)}


def scope_of(record: Any, plan: RecordPlan, *, everything: bool = False, sparse: bool = True) -> Bindings:
    """The scope that a record's fields make.

    Args:
        record: the record.
        plan: its class's plan.
        everything: whether to check all fields, or only those that bind dims.
        sparse: whether `None` and what is no array pass in the place of an array, as in the parts of a split record.

    Raises:
        Mismatch: at the first field that does not fit.
    """
    values = fields_in(record)
    bindings = _start(record, plan, values, _NO_SLOT, sparse)
    _run_fields(plan.fields if everything else plan.binding, values, bindings, sparse, whole=False)
    return bindings


def scope_of_object(record: Any, plan: RecordPlan) -> Bindings:
    """The scope that an object's attributes make, of those that fit: others may be changing it."""
    values = attributes_of(record)
    bindings = Bindings(_NO_SLOT, lambda: {"self": record})
    _bind_config(plan, values, bindings)
    for field in plan.binding:
        kept = bindings.snapshot()
        try:
            _run_fields((field,), values, bindings, True, whole=False)
        except (Mismatch, AnnotationError):
            bindings.restore(kept)
    return bindings


_NO_SLOT = Slot("value", "", None, Instance(object))


def _bind_config(plan: RecordPlan, values: Mapping[str, Any], bindings: Bindings) -> None:
    for slot in plan.config:
        value = values.get(slot.name)
        if type(value) is int:
            bindings.sizes[slot.name] = value
            bindings.origins[slot.name] = Origin(slot, (), None, value)


def _run_fields(
    checks: tuple[FieldCheck, ...], values: Mapping[str, Any], bindings: Bindings, sparse: bool, *, whole: bool
) -> None:
    for field in checks:
        name = field.slot.name
        if name not in values:
            continue
        value = values[name]
        if sparse and _is_absent(field, value):
            continue
        bindings.slot = field.slot
        (field.whole if whole else field.own)(value, bindings)
    if bindings.pending:
        settle(bindings, finally_=True)


def _is_absent(field: FieldCheck, value: Any) -> bool:
    """Whether a field of a sparse record holds nothing to check: `None`, or an axis or spec in an array's place."""
    return value is None or (field.array is not None and not is_array(value))


def _own_arrays(plan: RecordPlan, values: Mapping[str, Any]) -> list[tuple[ArrayOf, Any]]:
    rows = ((field.array, values.get(field.slot.name)) for field in plan.binding)
    return [(array, value) for array, value in rows if array is not None and is_array(value)]


def missing_axes(record: Any, plan: RecordPlan) -> int:
    """How many axes too few all of a record's own arrays have, as when a transform mapped over a plain record."""
    counts = {
        array.shape.min_rank - len(value.shape)
        for array, value in _own_arrays(plan, fields_in(record))
        if array.shape.variadic is None
    }
    return counts.pop() if len(counts) == 1 and min(counts) > 0 else 0


def stack_of(
    record: Any,
    plan: RecordPlan,
    outer: Stack | None = None,
    *,
    everything: bool = False,
    sparse: bool = True,
    shares: bool = True,
) -> Solution:
    """What a record is whose fields do not fit as those of one record, or that stands in a stack: a stack of such.

    Args:
        record: the record.
        plan: its class's plan.
        outer: the stack that it stands in.
        everything, sparse: as in `scope_of`.
        shares: as in `solve`.

    Raises:
        Mismatch: if it is none, or a record below it is not in the same stack.
    """
    values = fields_in(record)
    checks = plan.fields if everything else plan.binding
    rows = _rows(checks, values, type(record), outer, sparse, whole=False)
    solution = solve(rows, lambda: _start(record, plan, values, _NO_SLOT, sparse), outer, shares=shares)
    if solution.stack is not None:
        _check_below(record, values, solution.stack)
    return solution


def _start(record: Any, plan: RecordPlan, values: Mapping[str, Any], slot: Slot, sparse: bool) -> Bindings:
    bindings = Bindings(slot, lambda: {"self": record})
    bindings.sparse = sparse
    _bind_config(plan, values, bindings)
    return bindings


def _rows(
    checks: tuple[FieldCheck, ...],
    values: Mapping[str, Any],
    cls: type,
    outer: Stack | None,
    sparse: bool,
    *,
    whole: bool,
) -> list[Row]:
    roles, around = _roles(cls), NO_ROLE if outer is None else outer.role
    return [
        row(
            one.slot,
            values[one.slot.name],
            one.whole if whole else one.own,
            roles.get(one.slot.name, NO_ROLE).inside(around),
        )
        for one in checks
        if one.slot.name in values and not (sparse and _is_absent(one, values[one.slot.name]))
    ]


def is_made_of_fields(cls: Any) -> bool:
    """Whether records of a class are made by giving their fields, as a dataclass is, not by a written `__init__`."""
    code = getattr(cls.__init__, "__code__", None)
    return code is not None and code.co_filename == "<string>"


def _roles(cls: type) -> Mapping[str, Role]:
    return field_roles(cls) if issubclass(cls, eqx.Module) else {}


def _check_below(record: Any, values: Mapping[str, Any], stack: Stack) -> None:
    """Holds the records in a stacked one to its axes."""
    for name, value in values.items():
        inside = replace(stack, role=_roles(type(record)).get(name, NO_ROLE).inside(stack.role))
        for child in records_in(value, inside=False):
            with contextlib.suppress(AnnotationError):  # said when it was made, if it is weft's to say
                stack_of(child, record_plan(type(child)), inside)


def not_one(record: Any, plan: RecordPlan, bindings: Bindings) -> Mismatch:
    """What is wrong with a record whose fields do not fit: it is a stack, or has axes too few, or one field is."""
    spec = RecordOf(type(record), "module")
    try:
        solution = stack_of(record, plan)
    except Mismatch as nearest:
        return _overmapped(record, plan, bindings) or nearest
    return Mismatch("batched", spec, record, bindings, expected=solution.axes)


def _overmapped(record: Any, plan: RecordPlan, bindings: Bindings) -> Mismatch | None:
    missing = missing_axes(record, plan)
    spec = RecordOf(type(record), "module")
    return Mismatch("overmapped", spec, record, bindings, expected=missing) if missing else None


def check_rebuilt(tree: Any) -> Mismatch | None:
    """What does not fit in the records of a tree, each by itself or, if it is a stack, with what is in it."""
    for record in records_in(tree):
        with contextlib.suppress(AnnotationError):  # said when it was made, if it is weft's to say
            plan = record_plan(type(record))
            try:
                scope_of(record, plan)
            except Mismatch:
                slot = Slot("value", type(record).__name__, None, RecordOf(type(record), "module"))
                miss = not_one(record, plan, Bindings(slot))
                if miss.reason != "batched":
                    return miss
    return None


def records_in(tree: Any, *, inside: bool = True) -> list[Any]:
    """The Modules in a tree, outermost first; those inside of others too, unless it is only asked for the outermost."""
    found: list[Any] = []
    # Objects of other libraries may be pytrees that contain themselves: what is met again is not looked into again.
    seen: dict[int, Any] = {}

    def visit(node: Any) -> None:
        def is_end(one: Any) -> bool:
            if one is node:
                return False
            again = id(one) in seen
            seen[id(one)] = one  # kept, so that its identity stays its own
            return again or isinstance(one, eqx.Module)

        for leaf in jax.tree.leaves(node, is_leaf=is_end):
            if isinstance(leaf, eqx.Module):
                found.append(leaf)
                if inside:
                    visit(leaf)

    visit([tree])
    return found


def record_check(spec: RecordOf) -> Check:
    """The check of a record as an argument or inside one: its class, its fields in a scope of their own, its links.

    Of an object only the class is asked: others may hold it, and change it, while a call runs.
    """
    if spec.form == "object":
        return shell_check(Shell(spec))

    def check(value: Any, bindings: Bindings) -> None:
        if spec.form == "typeddict":
            _check_keys(spec, value, bindings)
        elif not isinstance(value, spec.cls):
            raise Mismatch("type", spec, value, bindings)
        plan = record_plan(spec.cls if spec.form == "typeddict" else type(value))
        try:
            inner = _scope_inside(spec, value, plan, bindings)
        except Mismatch as miss:
            if miss.bindings is not bindings:
                miss.outer.append((bindings.slot, bindings.path))
            raise
        if spec.dims is not None:
            _check_links(spec, spec.dims, value, inner, bindings)

    return check


def _check_keys(spec: RecordOf, value: Any, bindings: Bindings) -> None:
    cls: Any = spec.cls
    if not isinstance(value, dict):
        raise Mismatch("type", spec, value, bindings)
    wrong = sorted(cls.__required_keys__ - value.keys())
    if wrong:
        raise Mismatch("keys", spec, value, bindings, detail=", ".join(wrong))


# Where a stack may stand although nothing declares it: a model's field, and what a function makes. A function that is
# given one, and says that it takes one record, was most likely not mapped.
MAY_BE_STACKED = ("field", "return", "yield")


def _scope_inside(spec: RecordOf, value: Any, plan: RecordPlan, outer: Bindings) -> Bindings:
    """The scope of a record inside a value, with all that is in it checked."""
    values, sparse = fields_in(value), spec.form == "module"

    def start() -> Bindings:
        inner = _start(value, plan, values, outer.slot, sparse)
        # A record keeps what it is made of, so that NumPy's would stay NumPy's in it.
        inner.numpy = outer.numpy and not sparse
        return inner

    if outer.stack is None:
        inner = start()
        try:
            _run_fields(plan.inside, values, inner, sparse, whole=True)
            return inner
        except Mismatch as miss:
            rows = _rows(plan.inside, values, type(value), None, sparse, whole=True)
            # What does not fit inside of a child is said as it is, unless the child is in a stack.
            if miss.bindings is not inner and not may_be_stack(rows):
                raise
    rows = _rows(plan.inside, values, type(value), outer.stack, sparse, whole=True)
    try:
        solution = solve(rows, start, outer.stack)
    except Mismatch as nearest:
        raise (_overmapped(value, plan, outer) if outer.stack is None else None) or nearest from None
    if solution.axes and outer.slot.role not in MAY_BE_STACKED:
        raise Mismatch("batched", RecordOf(type(value), "module"), value, outer, expected=solution.axes)
    return solution.bindings


def _check_links(spec: RecordOf, dims: Dims, value: Any, inner: Bindings, outer: Bindings) -> None:
    known = {name for field in record_plan(type(value)).binding for name in _names(field.slot.annotation)}
    known |= {slot.name for slot in record_plan(type(value)).config}
    for child, dim in dims.links:
        if child not in known:
            raise AnnotationError(
                f"{outer.slot.name}: Dims({str(dims)!r}) links {child!r}, but the fields of {spec.cls.__qualname__} "
                f"bind {', '.join(sorted(known)) or 'no dims'}"
            )
        if child in inner.sizes:
            _check_link(spec, child, dim, value, inner, outer)


def _check_link(spec: RecordOf, child: str, dim: Any, value: Any, inner: Bindings, outer: Bindings) -> None:
    bound = isinstance(dim, NamedDim) and dim.name not in outer.sizes
    try:
        check_axes((dim,), (inner.sizes[child],), 0, value, outer, spec)
    except Mismatch as miss:
        miss.reason, miss.detail, miss.inner = "link", child, inner
        raise
    if bound:  # say which array of the child it comes from
        outer.origins[dim.name] = Origin(outer.slot, (*outer.path, child), None, inner.origins[child])


def _names(annotation: Annotation) -> set[str]:
    match annotation:
        case ArrayOf(shape=shape):
            return set(shape.names)
        case OneOf(parts) | TupleOf(parts):
            return set().union(*map(_names, parts))
        case SequenceOf(item=part) | MappingOf(value=part) | BatchedOf(inner=part):
            return _names(part)
        case RecordOf(dims=Dims(links=links)):
            return {dim.name for _, dim in links if isinstance(dim, NamedDim)}
        case _:
            return _names(annotation.leaf) if hasattr(annotation, "leaf") else set()  # pyright: ignore
