"""Checks: each annotation, turned once into a function `check(value, bindings)` that raises `Mismatch`.

`check_of` gives None where there is nothing to check, so that a function's plan only holds what costs something.
Arrays are checked from the ground up (`arrays`), because an error must know where each dim was bound; hints without
arrays that Python's `isinstance` cannot answer go to beartype, which is only imported when one turns up. Records and
pytrees have files of their own; `runtime` adds their rows to `BUILDERS`.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from weft.typecheck.language.annotations import (
    NONE,
    Annotation,
    Anything,
    ArrayOf,
    AwaitableOf,
    BatchedOf,
    BoxOf,
    CallableOf,
    Instance,
    LiteralOf,
    MappingOf,
    OneOf,
    Opaque,
    SequenceOf,
    StreamOf,
    TupleOf,
    Unresolved,
)
from weft.typecheck.language.objects import unboxed
from weft.typecheck.matching.arrays import Check, array_check, settle
from weft.typecheck.matching.bindings import Bindings, Mismatch
from weft.typecheck.matching.stacks import leading

# A collection of plain values is sampled; one with arrays in it is checked whole.
SAMPLED = 64
# Iterating anything else may have effects.
_SAFE_TO_ITERATE = (list, tuple, set, frozenset, collections.deque)


def check_of(annotation: Annotation) -> Check | None:
    """The check of an annotation, or None if every value passes."""
    builder = BUILDERS.get(type(annotation))
    return None if builder is None else builder(annotation)


def has_arrays(annotation: Annotation) -> bool:
    """Whether arrays (or records, which may hold some) occur in it."""
    match annotation:
        case OneOf(parts) | TupleOf(parts):
            return any(map(has_arrays, parts))
        case SequenceOf(item=part) | MappingOf(value=part):
            return has_arrays(part)
        case Instance() | LiteralOf() | Opaque() | Anything() | Unresolved() | CallableOf():
            return False
        case _:
            return True


def at(key: Any, check: Check, value: Any, bindings: Bindings) -> None:
    """Runs a check one step further down the path."""
    kept = bindings.path
    bindings.path = (*kept, key)
    try:
        check(value, bindings)
    finally:
        bindings.path = kept


def _instance(spec: Instance) -> Check:
    cls, number = spec.cls, _NUMBERS.get(spec.cls)

    def check(value: Any, bindings: Bindings) -> None:
        try:
            if isinstance(value, cls):
                return
        except TypeError:  # a protocol that is not runtime-checkable
            return
        if number is None or not _is_number(value, *number, bindings.lead):
            raise Mismatch("type", spec, value, bindings)

    return check


# A transform turns Python's numbers into scalar arrays, so these pass where the number is asked for.
_NUMBERS: dict[type, tuple[tuple[type, ...], Any]] = {
    bool: ((bool, np.bool_), np.bool_),
    int: ((int, np.integer), np.integer),
    float: ((int, float, np.integer, np.floating), np.number),
    complex: ((int, float, complex, np.number), np.number),
}


def _is_number(value: Any, classes: tuple[type, ...], dtypes: Any, lead: Any) -> bool:
    if isinstance(value, classes):
        return True
    rank = 0 if lead is None else len(lead[0].dims)
    return isinstance(value, jax.Array) and value.ndim in (0, rank) and jax.numpy.issubdtype(value.dtype, dtypes)


def _one_of(spec: OneOf) -> Check | None:
    members = [check_of(member) for member in spec.members if member != NONE]
    if any(member is None for member in members):
        return None
    optional = spec.optional
    checks = [member for member in members if member is not None]

    def check(value: Any, bindings: Bindings) -> None:
        if value is None and optional:
            return
        if len(checks) == 1:
            return checks[0](value, bindings)
        misses: list[Mismatch] = []
        for member in checks:
            kept = bindings.snapshot()
            try:
                return member(value, bindings)
            except Mismatch as miss:
                misses.append(miss)
                bindings.restore(kept)
        # The member that came closest says most; if none did, say what the union is.
        nearest = min(misses, key=lambda miss: _NEARNESS.get(miss.reason, 0))
        raise nearest if nearest.reason in _NEARNESS else Mismatch("type", spec, value, bindings)

    return check


_NEARNESS = {"size": -4, "axes": -4, "link": -4, "rank": -3, "batched": -3, "unbatched": -3, "dtype": -2}


def _tuple(spec: TupleOf) -> Check:
    items = [check_of(item) for item in spec.items]

    def check(value: Any, bindings: Bindings) -> None:
        if not isinstance(value, tuple):
            raise Mismatch("type", spec, value, bindings)
        if len(value) != len(items):
            raise Mismatch("length", spec, value, bindings, expected=len(items))
        for i, (item, part) in enumerate(zip(items, value, strict=True)):
            if item is not None:
                at(i, item, part, bindings)

    return check


def _sequence(spec: SequenceOf) -> Check:
    item = check_of(spec.item)
    limit = None if has_arrays(spec.item) else SAMPLED

    def check(value: Any, bindings: Bindings) -> None:
        if not isinstance(value, spec.cls):
            raise Mismatch("type", spec, value, bindings)
        if item is None or not isinstance(value, _SAFE_TO_ITERATE):
            return
        for i, part in enumerate(itertools.islice(value, limit)):
            at(i, item, part, bindings)

    return check


def _mapping(spec: MappingOf) -> Check:
    key, item = check_of(spec.key), check_of(spec.value)
    limit = None if has_arrays(spec.value) else SAMPLED

    def check(value: Any, bindings: Bindings) -> None:
        if not isinstance(value, spec.cls):
            raise Mismatch("type", spec, value, bindings)
        for name, part in itertools.islice(value.items(), limit):
            if key is not None:
                at(name, key, name, bindings)
            if item is not None:
                at(name, item, part, bindings)

    return check


def _is_a(spec: StreamOf | AwaitableOf) -> Check:
    def check(value: Any, bindings: Bindings) -> None:
        if not isinstance(value, spec.cls):
            raise Mismatch("type", spec, value, bindings)

    return check


def _callable(spec: CallableOf) -> Check:
    def check(value: Any, bindings: Bindings) -> None:
        if not callable(value):
            raise Mismatch("type", spec, value, bindings)

    return check


def _literal(spec: LiteralOf) -> Check:
    def check(value: Any, bindings: Bindings) -> None:
        if not any(type(value) is type(one) and value == one for one in spec.values):
            raise Mismatch("type", spec, value, bindings)

    return check


def _opaque(spec: Opaque) -> Check:
    def check(value: Any, bindings: Bindings) -> None:
        from beartype.door import is_bearable
        from beartype.roar import BeartypeException

        try:
            fits = is_bearable(value, spec.hint)
        except BeartypeException:  # a hint that beartype cannot check
            return
        if not fits:
            raise Mismatch("type", spec, value, bindings)

    return check


def _batched(spec: BatchedOf) -> Check | None:
    inner = check_of(spec.inner)
    if inner is None:
        return None

    def check(value: Any, bindings: Bindings) -> None:
        with leading(spec.axes, bindings):
            inner(value, bindings)

    return check


def _box(spec: BoxOf) -> Check:
    inner = check_of(spec.inner)

    def check(value: Any, bindings: Bindings) -> None:
        if not isinstance(value, spec.cls):
            raise Mismatch("type", spec, value, bindings)
        if inner is not None:
            inner(unboxed(value), bindings)

    return check


BUILDERS: dict[type, Callable[[Any], Check | None]] = {
    ArrayOf: array_check,
    Instance: _instance,
    OneOf: _one_of,
    TupleOf: _tuple,
    SequenceOf: _sequence,
    MappingOf: _mapping,
    StreamOf: _is_a,
    AwaitableOf: _is_a,
    CallableOf: _callable,
    LiteralOf: _literal,
    Opaque: _opaque,
    BatchedOf: _batched,
    BoxOf: _box,
}


def run_all(checks: Iterable[tuple[Any, Check, Any]], bindings: Bindings, *, finally_: bool) -> None:
    """Runs (slot, check, value) rows in one scope, then settles its expressions.

    Raises:
        Mismatch: at the first value that does not fit.
        AnnotationError: if `finally_` and an expression reads what nothing has bound, naming where it stands.
    """
    for slot, check, value in checks:
        bindings.slot = slot
        check(value, bindings)
    if bindings.pending:
        settle(bindings, finally_=finally_)
