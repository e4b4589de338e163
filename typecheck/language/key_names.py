"""Random keys that are recognised by name only: `key: jax.Array`, or `key` without an annotation."""

from __future__ import annotations

import dataclasses
import re

import jax
from weft.typecheck.language.annotations import ANY_DTYPE, NONE, Annotation, Anything, ArrayOf, Dtypes, members_of
from weft.typecheck.language.dims import Shape
from weft.typecheck.language.signatures import Parameter

KEY = ArrayOf(jax.Array, Dtypes("Key", ("prng_key",)), Shape.parse(""))
# Proofs need keys of the right dtype: `jax.random` refuses a float array, and the failure would be no fault.
_KEY_NAME = re.compile(r"(.+_)?(key|rng|prng)_?\d*|k\d")
_BESIDE_KEYS = {"query", "queries", "q", "value", "values", "v"}  # with these, `key` is attention's or a mapping's


def with_keys(parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """The parameters, with those annotated as random keys whose names alone show that they are."""
    # Next to `query` or `value`, `key` is an array of attention's: as a random key it could not be traced.
    if _BESIDE_KEYS & {one.name for one in parameters}:
        return parameters
    return tuple(
        dataclasses.replace(one, annotation=KEY)
        if _KEY_NAME.fullmatch(one.name) and _is_unsaid(one.annotation)
        else one
        for one in parameters
    )


def is_key_by_name(parameter: Parameter) -> bool:
    """Whether `with_keys` annotated a parameter: its caller may then also pass a generator of keys."""
    return parameter.annotation is KEY


def _is_unsaid(annotation: Annotation) -> bool:
    """Whether an annotation says at most that the value is an array, without dtype and shape."""
    return annotation != NONE and all(
        one in (Anything(), NONE, ArrayOf(jax.Array, ANY_DTYPE, Shape.parse("..."))) for one in members_of(annotation)
    )
