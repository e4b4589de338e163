"""Plans of records: the fields of a class that have something to check, and their checks, made once for each class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.core.caches import cached_by
from weft.typecheck.language.annotations import (
    Annotation,
    ArrayOf,
    BatchedOf,
    CheckedRecord,
    Instance,
    MappingOf,
    OneOf,
    RecordOf,
    SequenceOf,
    TreeOf,
    TupleOf,
    holds_arrays,
    members_of,
)
from weft.typecheck.language.forms import MODULE, Form, form_of
from weft.typecheck.language.signatures import fields_of
from weft.typecheck.matching.bindings import Bindings, Mismatch, Slot
from weft.typecheck.matching.compiling import CASES, Check, check_of
from weft.typecheck.matching.policies import Policy


@dataclass(frozen=True)
class FieldCheck:
    """The checks of one field.

    Attributes:
        slot: the field, for messages.
        whole: the check of the field and of everything inside.
        own: the check without the insides of child records, which were checked when they were constructed.
        array: the annotation of the field's array, if the field holds exactly one.
        binds: whether the field has arrays of the record's own, which bind its dims.
    """

    slot: Slot
    whole: Check
    own: Check
    array: ArrayOf | None
    binds: bool


@dataclass(frozen=True)
class RecordPlan:
    """The checks of a class of records under a policy.

    Attributes:
        cls: the class.
        form: the sort of class.
        policy: how values are matched.
        config: the fields annotated `int`, as slots.
        fields: the other fields that have something to check.
        inside: the fields with arrays or records inside; an argument is checked for these and for its class.
        binding: the fields that bind dims.
    """

    cls: type
    form: Form
    policy: Policy
    config: tuple[Slot, ...]
    fields: tuple[FieldCheck, ...]
    inside: tuple[FieldCheck, ...]
    binding: tuple[FieldCheck, ...]


@cached_by("class and policy")
def record_plan(cls: type, policy: Policy) -> RecordPlan:
    """The plan of a class under a policy, made at its first use.

    Raises:
        AnnotationError: in one line, if one of its annotations cannot be read.
    """
    config: list[Slot] = []
    checks: list[FieldCheck] = []
    for field in fields_of(cls):
        slot = Slot("field", field.name, cls, field.annotation)
        if field.annotation == Instance(int):
            config.append(Slot("config", field.name, cls, field.annotation))
        whole, own = check_of(field.annotation, policy), check_of(_without_insides(field.annotation), policy)
        if whole is not None and own is not None:
            arrays = [member for member in members_of(field.annotation) if isinstance(member, ArrayOf)]
            binds = any(map(_binds, field.annotation.walk()))
            checks.append(FieldCheck(slot, whole, own, arrays[0] if len(arrays) == 1 else None, binds))
    form = form_of(cls)
    assert form is not None
    # A call checks an argument's arrays again, because transforms make records with other arrays.
    inside = tuple(check for check in checks if holds_arrays(check.slot.annotation))
    binding = tuple(check for check in inside if check.binds)
    return RecordPlan(cls, form, policy, tuple(config), tuple(checks), inside, binding)


def _binds(annotation: Annotation) -> bool:
    """Whether an annotation is an array of the record's own, or a child record whose dims `Dims` links to it."""
    return isinstance(annotation, ArrayOf | BatchedOf | TreeOf) or (
        isinstance(annotation, RecordOf) and annotation.dims is not None
    )


def _without_insides(annotation: Annotation) -> Any:
    """The annotation with a `CheckedRecord` in place of each child record without `Dims`: only its class is asked."""
    if isinstance(annotation, OneOf | TupleOf | SequenceOf | MappingOf):
        return annotation.rebuilt(_without_insides)
    # A linked child is opened even so: `Dims` needs the sizes that the fields of the child bind.
    if isinstance(annotation, RecordOf) and annotation.form is MODULE and annotation.dims is None:
        return CheckedRecord(annotation)
    return annotation


def shell_check(spec: CheckedRecord, policy: Policy) -> Check:
    """The check that a child record is of its class, without looking inside."""
    cls, form = spec.record.cls, spec.record.form

    def check(value: Any, bindings: Bindings) -> None:
        if form.instance_in(cls, value) is None:
            raise Mismatch("type", spec.record, value, bindings)

    return check


CASES[CheckedRecord] = shell_check
