"""Checks values without arrays: numbers, instances, literals, callables, streams, and hints that beartype checks.

These checks run under a policy with `plain`, and in unions under every policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jaxtyping
import numpy as np
from weft.typecheck.language.annotations import (
    NONE,
    Annotation,
    AwaitableOf,
    CallableOf,
    Instance,
    LiteralOf,
    Opaque,
    StreamOf,
)
from weft.typecheck.language.forms import is_size
from weft.typecheck.matching.bindings import Bindings, Mismatch
from weft.typecheck.matching.compiling import CASES, Check


def plain_check(annotation: Annotation) -> Check | None:
    """The check of an annotation that is not about arrays, under any policy; None if there is nothing to check."""
    make = _PLAIN.get(type(annotation))
    return None if make is None else make(annotation)


def _instance(spec: Instance) -> Check:
    cls: Any = spec.cls
    number = ((), np.generic) if issubclass(cls, np.generic) else _NUMBERS.get(cls)
    if issubclass(cls, jaxtyping.AbstractDtype):  # bare `key: Key` fails in jaxtyping; here any shape passes
        cls = cls[Any, "..."]

    def check(value: Any, bindings: Bindings) -> None:
        try:
            if isinstance(value, cls):
                return
        except TypeError:  # `isinstance` raises for a Protocol without `@runtime_checkable`
            return
        if number is None or not _is_number(value, *number, bindings.lead):
            raise Mismatch("type", spec, value, bindings)

    return check


# Under a transform, a Python number becomes a scalar array, which must pass where the number is annotated.
_NUMBERS: dict[type, tuple[tuple[type, ...], Any]] = {
    bool: ((bool, np.bool_), np.bool_),
    int: ((int, np.integer), np.integer),
    float: ((int, float, np.integer, np.floating), np.number),
    complex: ((int, float, complex, np.number), np.number),
}


def _is_number(value: Any, classes: tuple[type, ...], dtypes: Any, lead: Any) -> bool:
    if isinstance(value, classes) or (dtypes is not np.bool_ and is_size(value)):  # proofs pass symbolic sizes
        return True
    if not isinstance(value, jax.Array | jax.ShapeDtypeStruct):
        return False
    # In a stack of records a number has become an array with the stack's leading axes.
    rank = 0 if lead is None else len(lead[0].dims)
    return value.ndim in (0, rank) and jax.numpy.issubdtype(value.dtype, dtypes)


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
        # The types are compared too: `True == 1`, but `Literal[1]` does not accept `True`.
        if not any(type(value) is type(allowed) and value == allowed for allowed in spec.values):
            raise Mismatch("type", spec, value, bindings)

    return check


def _opaque(spec: Opaque) -> Check:
    def check(value: Any, bindings: Bindings) -> None:
        # Imported here, because most annotations need no beartype and importing it takes time.
        from beartype.door import is_bearable
        from beartype.roar import BeartypeException

        try:
            fits = is_bearable(value, spec.hint)
        except BeartypeException:  # beartype does not support the hint, so nothing can be said
            return
        if not fits:
            raise Mismatch("type", spec, value, bindings)

    return check


_PLAIN: dict[type, Callable[[Any], Check]] = {
    Instance: _instance,
    StreamOf: _is_a,
    AwaitableOf: _is_a,
    CallableOf: _callable,
    LiteralOf: _literal,
    Opaque: _opaque,
}


# `None` is checked under every policy: it says that there is no array.
CASES.update(
    dict.fromkeys(
        _PLAIN,
        lambda annotation, policy: plain_check(annotation) if policy.plain or annotation == NONE else None,
    )
)
