"""Compiling: turns each annotation once into a function `check(value, bindings)` that raises `Mismatch`.

`CASES` has one row for each class of annotation; the row makes the check from an annotation and a policy. The other
modules of this package add their rows on import (`__init__` imports them all). Run time and proofs use the same rows
and differ in the policy, because two implementations once disagreed on TypedDicts, unions and `"S T"`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.typecheck.language.annotations import Annotation
from weft.typecheck.matching.bindings import Bindings
from weft.typecheck.matching.policies import Policy

Check = Callable[[Any, Bindings], None]
Case = Callable[[Any, Policy], Check | None]

# How to make the check of an annotation's class; None means that every value passes, so that plans hold no empty check.
CASES: dict[type, Case] = {}


def check_of(annotation: Annotation, policy: Policy) -> Check | None:
    """The check of an annotation under a policy; None if every value passes."""
    case = CASES.get(type(annotation))
    return None if case is None else case(annotation, policy)


def at(key: Any, check: Check, value: Any, bindings: Bindings) -> None:
    """Runs a check on a part of a value, with the part's key added to the path."""
    path = bindings.path
    bindings.path = (*path, key)
    try:
        # The path must be put back even after a mismatch: a union tries its next member with the same bindings.
        check(value, bindings)
    finally:
        bindings.path = path
