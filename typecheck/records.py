"""The checks of records: fields at construction, on rebuilding, as arguments, and as the scope of their methods.

Every record is a scope of its own: its fields bind the dims of this one instance. Plain `int` fields bind dims as well
(the *config*): `width: int` is the size of the dim `width`. A child's dims are linked to its parent's where the field
says so, by `Dims`.

A record may be *stacked*: all its arrays carry the same extra leading axes. `Batched[...]` declares that. Where it is
not declared, a stacked record may be passed around and rebuilt, but not used as a single one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
from weft.core.configuration import field_values
from weft.core.leaves import is_array
from weft.typecheck.annotations import (
    Annotation,
    ArrayOf,
    BatchedOf,
    BoxOf,
    Instance,
    MappingOf,
    OneOf,
    RecordOf,
    SequenceOf,
    TupleOf,
)
from weft.typecheck.arrays import Check, check_axes, settle
from weft.typecheck.batched import Dims
from weft.typecheck.bindings import Bindings, Mismatch, Origin, Slot
from weft.typecheck.checks import check_of, has_arrays, with_lead
from weft.typecheck.dims import AnyDim, NamedDim, Shape
from weft.typecheck.errors import AnnotationError
from weft.typecheck.objects import attributes_of
from weft.typecheck.signatures import Field, fields_of


@dataclass(frozen=True)
class FieldCheck:
    """One field that has something to check.

    Attributes:
        slot: the field.
        whole: the check of everything below.
        own: the check without the insides of child records, which were checked when they were made.
        array: the annotation of the array that it holds, if it holds just one.
        is_array: whether arrays that belong to the record itself are in it, so that it binds dims.
    """

    slot: Slot
    whole: Check
    own: Check
    array: ArrayOf | None
    binds: bool


@dataclass(frozen=True)
class RecordPlan:
    """What to check of a class of records; made once for each class.

    Attributes:
        cls: the class.
        config: its `int` fields, as slots.
        fields: its other fields with something to check.
        inside: those of them with arrays or records in them: what an argument is checked for beyond its class.
        binding: those that bind dims.
    """

    cls: type
    config: tuple[Slot, ...]
    fields: tuple[FieldCheck, ...]
    inside: tuple[FieldCheck, ...]
    binding: tuple[FieldCheck, ...]


@functools.cache
def record_plan(cls: type) -> RecordPlan:
    """The plan of a class.

    Raises:
        AnnotationError: in one line, if one of its annotations cannot be read.
    """
    config: list[Slot] = []
    checks: list[FieldCheck] = []
    for field in fields_of(cls):
        slot = Slot("field", field.name, cls, field.annotation)
        if field.annotation == Instance(int):
            config.append(Slot("config", field.name, cls, field.annotation))
        check = _field_check(field, slot)
        if check is not None:
            checks.append(check)
    inside = tuple(check for check in checks if has_arrays(check.slot.annotation))
    return RecordPlan(cls, tuple(config), tuple(checks), inside, tuple(check for check in inside if check.binds))


def _field_check(field: Field, slot: Slot) -> FieldCheck | None:
    whole = check_of(field.annotation)
    own = check_of(_without_insides(field.annotation))
    if whole is None or own is None:
        return None
    arrays = [one for one in _alternatives(field.annotation) if isinstance(one, ArrayOf)]
    return FieldCheck(slot, whole, own, arrays[0] if len(arrays) == 1 else None, _binds(field.annotation))


def _alternatives(annotation: Annotation) -> tuple[Annotation, ...]:
    return annotation.members if isinstance(annotation, OneOf) else (annotation,)


def _binds(annotation: Annotation) -> bool:
    match annotation:
        case OneOf(parts) | TupleOf(parts):
            return any(map(_binds, parts))
        case SequenceOf(item=part) | MappingOf(value=part) | BoxOf(inner=part):
            return _binds(part)
        case RecordOf(dims=dims):
            return dims is not None
        case ArrayOf() | BatchedOf():
            return True
        case _:
            return hasattr(annotation, "leaf")


@dataclass(frozen=True)
class Shell:
    """A child record, of which only the class is asked."""

    record: RecordOf

    def __str__(self) -> str:
        return str(self.record)


def _without_insides(annotation: Annotation) -> Any:
    match annotation:
        case OneOf(parts):
            return OneOf(tuple(map(_without_insides, parts)))
        case TupleOf(parts):
            return TupleOf(tuple(map(_without_insides, parts)))
        case SequenceOf(cls, part):
            return SequenceOf(cls, _without_insides(part))
        case MappingOf(cls, key, part):
            return MappingOf(cls, key, _without_insides(part))
        case RecordOf(form="module", dims=None):
            return Shell(annotation)
        case _:
            return annotation


def shell_check(spec: Shell) -> Check:
    """Makes the check of a child record's class."""
    cls = spec.record.cls

    def check(value: Any, bindings: Bindings) -> None:
        if not isinstance(value, cls):
            raise Mismatch("type", spec.record, value, bindings)

    return check


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
    bindings = Bindings(_NO_SLOT, lambda: {"self": record})
    _bind_config(plan, values, bindings)
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
        if sparse and (value is None or (field.array is not None and not is_array(value))):
            continue
        bindings.slot = field.slot
        (field.whole if whole else field.own)(value, bindings)
    if bindings.pending:
        settle(bindings, finally_=True)


def _own_arrays(plan: RecordPlan, values: Mapping[str, Any]) -> list[tuple[ArrayOf, Any]]:
    rows = ((field.array, values.get(field.slot.name)) for field in plan.binding)
    return [(array, value) for array, value in rows if array is not None and is_array(value)]


def stacked_axes(record: Any, plan: RecordPlan) -> tuple[Any, ...]:
    """The extra leading axes that all of a record's own arrays carry, `()` if there are none in common."""
    lead: tuple[Any, ...] | None = None
    values = fields_in(record)
    for array, value in _own_arrays(plan, values):
        if array.shape.variadic is not None:
            return ()
        extra = len(value.shape) - array.shape.min_rank
        if extra <= 0 or (lead is not None and lead != tuple(value.shape[:extra])):
            return ()
        lead = tuple(value.shape[:extra])
    return lead or ()


def missing_axes(record: Any, plan: RecordPlan) -> int:
    """How many axes too few all of a record's own arrays have, as when a transform mapped over a plain record."""
    counts = {
        array.shape.min_rank - len(value.shape)
        for array, value in _own_arrays(plan, fields_in(record))
        if array.shape.variadic is None
    }
    return counts.pop() if len(counts) == 1 and min(counts) > 0 else 0


def fits_stacked(record: Any, plan: RecordPlan, lead: tuple[Any, ...]) -> bool:
    """Whether a record's fields fit, once its leading axes are taken off."""
    bindings = Bindings(_NO_SLOT, lambda: {"self": record})
    values = fields_in(record)
    _bind_config(plan, values, bindings)
    try:
        with_lead(
            Shape((AnyDim(),) * len(lead)),
            lambda _, bindings: _run_fields(plan.binding, values, bindings, True, whole=False),
            record,
            bindings,
        )
    except (Mismatch, AnnotationError):
        return False
    return True


def whole_mismatch(record: Any, plan: RecordPlan, bindings: Bindings) -> Mismatch | None:
    """What is wrong with a record as a whole, if its fields do not fit for one reason: an axis too many, or too few."""
    spec = RecordOf(type(record), "module")
    lead = stacked_axes(record, plan)
    if lead and fits_stacked(record, plan, lead):
        return Mismatch("batched", spec, record, bindings, expected=lead)
    missing = missing_axes(record, plan)
    return Mismatch("overmapped", spec, record, bindings, expected=missing) if missing else None


def check_rebuilt(tree: Any) -> Mismatch | None:
    """What does not fit in the records of a tree, each by itself; one that is stacked as a whole does."""
    for record in records_in(tree):
        try:
            plan = record_plan(type(record))
            scope_of(record, plan)
        except AnnotationError:  # said when it was made, if it is weft's to say
            continue
        except Mismatch as miss:
            plan = record_plan(type(record))
            slot = Slot("value", type(record).__name__, None, RecordOf(type(record), "module"))
            as_whole = whole_mismatch(record, plan, Bindings(slot))
            if as_whole is None or as_whole.reason != "batched":
                return as_whole or miss
    return None


def records_in(tree: Any) -> list[Any]:
    """The Modules in a tree, outermost first."""
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
        inner = Bindings(bindings.slot, lambda: {"self": value})
        if bindings.lead is not None:
            inner.lead = bindings.lead
        _check_fields(spec, value, plan, inner, bindings)
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


def _check_fields(spec: RecordOf, value: Any, plan: RecordPlan, inner: Bindings, outer: Bindings) -> None:
    values = fields_in(value)
    _bind_config(plan, values, inner)
    try:
        _run_fields(plan.inside, values, inner, spec.form == "module", whole=True)
    except Mismatch as miss:
        if miss.bindings is inner and outer.lead is None:
            as_whole = whole_mismatch(value, plan, outer)
            if as_whole is not None and as_whole.reason == "batched" and outer.slot.role == "field":
                return  # a stacked child that is not declared so: it is checked where it is used
            if as_whole is not None:
                raise as_whole from None
        miss.outer.append((outer.slot, outer.path))
        raise


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
