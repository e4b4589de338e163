"""What a call did to the shapes of an object's boxes.

A step that leaves a parameter or a statistic with another shape than it found is wrong, whether or not its attribute is
annotated: the next step does not fit, or compiles anew. What may grow (a cache, a record of intermediate values) is
left alone; `Layer.lasting` says which boxes are not to.
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
    """The value of each lasting box in some arguments, abstractly, with its kind, by path."""
    found: dict[str, tuple[str, Any]] = {}
    for path, one in objects_in({**dict(enumerate(args)), **names}):
        layer = layer_of(type(one))
        for name, value in layer.attributes(one).items() if layer is not None else ():
            if layer is not None and isinstance(value, layer.lasting) and is_array(unboxed(value)):
                held = unboxed(value)
                found[f"{path}.{name}"] = f"{type(value).__name__} {name}", jax.ShapeDtypeStruct(held.shape, held.dtype)
    return found


def changes(function: str, file: str, line: int, before: Shapes, after: Shapes) -> Iterator[Violation]:
    """The boxes whose shape is another one after a call."""
    for path, (what, old) in before.items():
        _, new = after.get(path, (what, old))
        if old.shape != new.shape:
            yield Violation(function, file, line, what, f"was {in_words(old)}, and is {in_words(new)} after the call")
