"""Plans of records: which fields of a class have something to check, and how; made once for each class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.core.caches import cached_by
from weft.typecheck.language.annotations import (
    Annotation,
    ArrayOf,
    BatchedOf,
    Instance,
    MappingOf,
    OneOf,
    RecordOf,
    SequenceOf,
    Shell,
    TreeOf,
    TupleOf,
    holds_arrays,
    members_of,
)
from weft.typecheck.language.forms import MODULE, Form, form_of
from weft.typecheck.language.signatures import Field, fields_of
from weft.typecheck.matching.bindings import Bindings, Mismatch, Slot
from weft.typecheck.matching.compiling import CASES, Check, check_of
from weft.typecheck.matching.policies import Policy


@dataclass(frozen=True)
class FieldCheck:
    """One field that has something to check.

    Attributes:
        slot: the field.
        whole: the check of everything below.
        own: the check without the insides of child records, which were checked when they were made.
        array: the annotation of the array that it holds, if it holds just one.
        binds: whether arrays that belong to the record itself are in it, so that it binds dims.
    """

    slot: Slot
    whole: Check
    own: Check
    array: ArrayOf | None
    binds: bool


@dataclass(frozen=True)
class RecordPlan:
    """What to check of a class of records under a policy; made once for each.

    Attributes:
        cls: the class.
        form: which sort of class it is.
        policy: how it is matched.
        config: its `int` fields, as slots.
        fields: its other fields with something to check.
        inside: those of them with arrays or records in them: what an argument is checked for beyond its class.
        binding: those that bind dims.
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
        check = _field_check(field, slot, policy)
        if check is not None:
            checks.append(check)
    form = form_of(cls)
    assert form is not None
    inside = tuple(check for check in checks if holds_arrays(check.slot.annotation))
    binding = tuple(check for check in inside if check.binds)
    return RecordPlan(cls, form, policy, tuple(config), tuple(checks), inside, binding)


def _field_check(field: Field, slot: Slot, policy: Policy) -> FieldCheck | None:
    whole = check_of(field.annotation, policy)
    own = check_of(_without_insides(field.annotation), policy)
    if whole is None or own is None:
        return None
    arrays = [one for one in members_of(field.annotation) if isinstance(one, ArrayOf)]
    binds = any(map(_binds, field.annotation.walk()))
    return FieldCheck(slot, whole, own, arrays[0] if len(arrays) == 1 else None, binds)


def _binds(annotation: Annotation) -> bool:
    """Whether it is an array of the record's own, or a record that `Dims` links to its dims."""
    return isinstance(annotation, ArrayOf | BatchedOf | TreeOf) or (
        isinstance(annotation, RecordOf) and annotation.dims is not None
    )


def _without_insides(annotation: Annotation) -> Any:
    """The same with shells in place of child records, where nothing around them asks for their arrays."""
    if isinstance(annotation, OneOf | TupleOf | SequenceOf | MappingOf):
        return annotation.rebuilt(_without_insides)
    if isinstance(annotation, RecordOf) and annotation.form is MODULE and annotation.dims is None:
        return Shell(annotation)
    return annotation


def shell_check(spec: Shell, policy: Policy) -> Check:
    """Makes the check of a child record's class."""
    cls, form = spec.record.cls, spec.record.form

    def check(value: Any, bindings: Bindings) -> None:
        if form.held(cls, value) is None:
            raise Mismatch("type", spec.record, value, bindings)

    return check


CASES[Shell] = shell_check
