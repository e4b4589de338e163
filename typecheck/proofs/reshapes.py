"""Impossible reshapes in a jaxpr: `jax.lax.reshape` accepts any new shape while tracing, and only compiling fails."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from weft.typecheck.proofs.axis_lints import frames, nested_jaxprs, shape_of
from weft.typecheck.proofs.whose import is_users

# The beginning of JAX's error when it compiles such a reshape.
REFUSED = "cannot reshape array"


def impossible_reshape(closed: Any, own: frozenset[str]) -> tuple[Exception, tuple[str, int]] | None:
    """The error of the first reshape that changes the number of elements, with the user's file and line; or None.

    Args:
        closed: a closed jaxpr.
        own: files that count as the user's.
    """
    for eqn in _reshapes(closed.jaxpr):
        old, new = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
        if math.prod(old) != math.prod(new):
            at = next(((file, line) for file, _, line in frames(eqn) if is_users(file, own)), ("", 0))
            return TypeError(f"{REFUSED} of shape {old} into shape {new}"), at
    return None


def _reshapes(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "reshape":
            yield eqn
        for _, inner in nested_jaxprs(eqn):
            yield from _reshapes(inner)
