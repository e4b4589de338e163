"""Random keys that only a parameter's name shows: `key: jax.Array`, or `key` without an annotation."""

from __future__ import annotations

import dataclasses
import re

import jax
from weft.typecheck.language.annotations import ANY_DTYPE, NONE, Annotation, Anything, ArrayOf, Dtypes, members_of
from weft.typecheck.language.dims import Shape
from weft.typecheck.language.signatures import Parameter

KEY = ArrayOf(jax.Array, Dtypes("Key", ("prng_key",)), Shape.parse(""))
# Proofs need keys of the right dtype: `jax.random` refuses a float array, which would be no fault of the program.
_KEY_NAME = re.compile(r"(.+_)?(key|rng|prng)_?\d*|k\d")
# The names of parameters that make a `key` the key of an attention or of a mapping.
_WITH_OTHER_KEYS = {"query", "queries", "q", "value", "values", "v"}


def with_keys(parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """The parameters, of which those that only their names show to be random keys are annotated as keys."""
    # Next to `query` or `value`, `key` is an array of attention: as a random key it could not be traced.
    if _WITH_OTHER_KEYS & {parameter.name for parameter in parameters}:
        return parameters
    return tuple(
        dataclasses.replace(parameter, annotation=KEY)
        if _KEY_NAME.fullmatch(parameter.name) and _is_unsaid(parameter.annotation)
        else parameter
        for parameter in parameters
    )


def is_key_by_name(parameter: Parameter) -> bool:
    """Whether `with_keys` annotated a parameter: its caller may then also pass a generator of keys."""
    return parameter.annotation is KEY


def _is_unsaid(annotation: Annotation) -> bool:
    """Whether an annotation says at most that the value is an array, without dtype and shape."""
    unsaid = (Anything(), NONE, ArrayOf(jax.Array, ANY_DTYPE, Shape.parse("...")))
    return annotation != NONE and all(member in unsaid for member in members_of(annotation))
