"""Variables of objects whose shape a call has changed.

A step that changes the shape of a parameter or a statistic is wrong, whether or not the attribute is annotated: the
next step fails, or compiles anew. Caches and recorded intermediate values may grow; `Layer.lasting` lists the classes
of variables that may not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
from weft.core.records.leaves import is_array
from weft.typecheck.language.objects import layer_of, objects_in, unboxed
from weft.typecheck.matching.words import in_words
from weft.typecheck.proofs.violations import Violation

Shapes = Mapping[str, tuple[str, Any]]


def shapes_of(args: tuple[Any, ...], names: Mapping[str, Any]) -> Shapes:
    """For each variable among the arguments whose shape must not change, by path: its kind and name, and its aval."""
    shapes: dict[str, tuple[str, Any]] = {}
    for path, owner in objects_in({**dict(enumerate(args)), **names}):
        layer = layer_of(type(owner))
        for name, value in layer.attributes(owner).items() if layer is not None else ():
            if layer is not None and isinstance(value, layer.lasting) and is_array(unboxed(value)):
                # As an abstract value, since the call may put another array into the same variable.
                array, kind = unboxed(value), type(value).__name__
                shapes[f"{path}.{name}"] = f"{kind} {name}", jax.ShapeDtypeStruct(array.shape, array.dtype)
    return shapes


def changes(function: str, file: str, line: int, before: Shapes, after: Shapes) -> Iterator[Violation]:
    """A violation for each variable whose shape a call has changed."""
    for path, (where, old) in before.items():
        # A variable that the call has removed is no change of shape.
        _, new = after.get(path, (where, old))
        if old.shape != new.shape:
            yield Violation(function, file, line, where, f"was {in_words(old)}, and is {in_words(new)} after the call")
