"""Plans of records: which fields of a class have something to check, and how; made once for each class."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from weft.typecheck.language.annotations import (
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
from weft.typecheck.language.signatures import Field, fields_of
from weft.typecheck.matching.arrays import Check
from weft.typecheck.matching.bindings import Bindings, Mismatch, Slot
from weft.typecheck.matching.checks import check_of, has_arrays


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
