"""Compiling: each annotation, turned once into a function `check(value, bindings)` that raises `Mismatch`.

This is the whole of the matcher's frame; what a check does is said by the rows of `CASES`, one for each class of
annotation, which the other files of this room put there (the room's `__init__` loads them all). A row gets the
annotation and the policy, so that the run-time checker and the prover are two readings of one text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.typecheck.language.annotations import Annotation
from weft.typecheck.matching.bindings import Bindings
from weft.typecheck.matching.policies import Policy

Check = Callable[[Any, Bindings], None]
Case = Callable[[Any, Policy], Check | None]

# What a class of annotations asks; None where every value passes, so that a plan only holds what costs something.
CASES: dict[type, Case] = {}


def check_of(annotation: Annotation, policy: Policy) -> Check | None:
    """The check of an annotation under a policy, or None if every value passes."""
    case = CASES.get(type(annotation))
    return None if case is None else case(annotation, policy)


def at(key: Any, check: Check, value: Any, bindings: Bindings) -> None:
    """Runs a check one step further down the path."""
    kept = bindings.path
    bindings.path = (*kept, key)
    try:
        check(value, bindings)
    finally:
        bindings.path = kept
