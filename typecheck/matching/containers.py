"""Checks unions, tuples, collections, mappings and boxes: annotations that contain further annotations."""

from __future__ import annotations

import itertools
from typing import Any

from weft.typecheck.language.annotations import (
    NONE,
    BoxOf,
    MappingOf,
    OneOf,
    SequenceOf,
    TupleOf,
    holds_arrays,
)
from weft.typecheck.language.forms import unboxed
from weft.typecheck.matching.bindings import Bindings, Mismatch
from weft.typecheck.matching.compiling import CASES, Check, at, check_of
from weft.typecheck.matching.plain import plain_check
from weft.typecheck.matching.policies import Policy

# Only the first plain values of a collection are checked, since a list may be long; arrays are all checked.
SAMPLED = 64


def _one_of(spec: OneOf, policy: Policy) -> Check | None:
    # Members without arrays are checked under every policy: otherwise an array that fits no member would pass as an
    # instance of a class.
    members = [check_of(member, policy) or plain_check(member) for member in spec.members if member != NONE]
    checks = [member for member in members if member is not None]
    if len(checks) < len(members):  # a member that every value fits makes every value fit the union
        return None
    optional = spec.optional

    def check(value: Any, bindings: Bindings) -> None:
        if value is None and optional:
            return
        # With a single member besides None its own mismatch says most, and no snapshot is needed.
        if len(checks) == 1:
            return checks[0](value, bindings)
        misses: list[Mismatch] = []
        for member in checks:
            # A member that fails has bound names already: without the snapshot, they would hold in the next member.
            snapshot = bindings.snapshot()
            try:
                return member(value, bindings)
            except Mismatch as miss:
                misses.append(miss)
                bindings.restore(snapshot)
        # The mismatch of the member that came closest says most, such as a wrong size; if the value has the type of no
        # member, the error names the union.
        nearest = min(misses, key=lambda miss: _NEARNESS.get(miss.reason, 0))
        raise nearest if nearest.reason in _NEARNESS else Mismatch("type", spec, value, bindings)

    return check


# A value of the right class, dtype and rank with one wrong size was most likely meant for that member. The lower, the
# nearer; the reasons that are not here say that the value is of another type.
_NEARNESS = {"size": -4, "axes": -4, "link": -4, "rank": -3, "batched": -3, "unbatched": -3, "dtype": -2}


def _tuple(spec: TupleOf, policy: Policy) -> Check:
    items = [check_of(item, policy) for item in spec.items]

    def check(value: Any, bindings: Bindings) -> None:
        if not isinstance(value, tuple):
            raise Mismatch("type", spec, value, bindings)
        if len(value) != len(items):
            raise Mismatch("length", spec, value, bindings, expected=len(items))
        for i, (item, part) in enumerate(zip(items, value, strict=True)):
            if item is not None:
                at(i, item, part, bindings)

    return check


def _sequence(spec: SequenceOf, policy: Policy) -> Check:
    item = check_of(spec.item, policy.several)
    limit = None if holds_arrays(spec.item) else SAMPLED

    def check(value: Any, bindings: Bindings) -> None:
        if not isinstance(value, spec.cls):
            raise Mismatch("type", spec, value, bindings)
        # Iterating over a generator, or another iterable with effects, would consume it.
        if item is None or not isinstance(value, policy.iterates):
            return
        for i, part in enumerate(itertools.islice(value, limit)):
            at(i, item, part, bindings)

    return check


def _mapping(spec: MappingOf, policy: Policy) -> Check:
    key, item = check_of(spec.key, policy.several), check_of(spec.value, policy.several)
    limit = None if holds_arrays(spec.value) else SAMPLED

    def check(value: Any, bindings: Bindings) -> None:
        if not isinstance(value, spec.cls):
            raise Mismatch("type", spec, value, bindings)
        for name, part in itertools.islice(value.items(), limit):
            if key is not None:
                at(name, key, name, bindings)
            if item is not None:
                at(name, item, part, bindings)

    return check


def _box(spec: BoxOf, policy: Policy) -> Check:
    inner = check_of(spec.inner, policy)

    def check(value: Any, bindings: Bindings) -> None:
        if not isinstance(value, spec.cls):
            raise Mismatch("type", spec, value, bindings)
        if inner is not None:
            inner(unboxed(value), bindings)

    return check


CASES.update({OneOf: _one_of, TupleOf: _tuple, SequenceOf: _sequence, MappingOf: _mapping, BoxOf: _box})
