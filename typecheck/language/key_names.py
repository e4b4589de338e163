"""Random keys that only their names show: `key: jax.Array`, or `key` without an annotation."""

from __future__ import annotations

import dataclasses
import re

import jax
from weft.typecheck.language.annotations import ANY_DTYPE, NONE, Annotation, Anything, ArrayOf, Dtypes, members_of
from weft.typecheck.language.dims import Shape
from weft.typecheck.language.signatures import Parameter

KEY = ArrayOf(jax.Array, Dtypes("Key", ("prng_key",)), Shape.parse(""))
_KEY_NAME = re.compile(r"(.+_)?(key|rng|prng)_?\d*|k\d")
_BESIDE_KEYS = {"query", "queries", "q", "value", "values", "v"}  # of attention, or of a mapping


def with_keys(parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """Parameters of which those that only their names show to be random keys are annotated as such."""
    if _BESIDE_KEYS & {one.name for one in parameters}:
        return parameters
    return tuple(
        dataclasses.replace(one, annotation=KEY)
        if _KEY_NAME.fullmatch(one.name) and _is_unsaid(one.annotation)
        else one
        for one in parameters
    )


def is_key_by_name(parameter: Parameter) -> bool:
    """Whether `with_keys` has annotated it: then a generator of keys may be meant, too."""
    return parameter.annotation is KEY


def _is_unsaid(annotation: Annotation) -> bool:
    """Whether an annotation says at most that it is about an array."""
    return annotation != NONE and all(
        one in (Anything(), NONE, ArrayOf(jax.Array, ANY_DTYPE, Shape.parse("..."))) for one in members_of(annotation)
    )
