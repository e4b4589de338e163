"""Generalising an instance: its arrays become abstract ones of other sizes, so that equal sizes hide nothing.

There are two ways. The class is called with integers that can be read off the instance. If that gives an instance of
the same structure and shapes, those integers are what varies: the constructor knows how the sizes of submodules hang
together. Otherwise each array takes the dims that its field's annotation declares (see `abstract_copies`), and what the
program joins across submodules is found by the search.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
from weft.core.records.leaves import is_array
from weft.typecheck.arguments.abstract_copies import abstract_copy
from weft.typecheck.arguments.builder import Builder, Scope, random_keys
from weft.typecheck.arguments.constructors import (
    counts_of,
    is_a_key,
    is_a_size,
    object_for,
    signature_of_class,
    structure_of,
    structure_of_call,
)
from weft.typecheck.arguments.records import build_module
from weft.typecheck.arguments.values import BY_NAME, holds_objects
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import Anything, Instance
from weft.typecheck.language.forms import form_of_value, objects_in, opened
from weft.typecheck.language.signatures import Parameter
from weft.typecheck.matching.policies import PROOF
from weft.typecheck.matching.records import dims_of_instance

# Each guess traces the constructor once: a class with many integers would multiply the guesses without end.
_CALLS = 120


def generalise(instance: Any) -> Callable[[Builder], Any]:
    """A function that builds, for each `Builder`, an abstract instance like the given one at the builder's sizes."""
    known = reconstruct(instance)
    if known is not None:
        return lambda builder: build_module(builder, type(instance), "self", Scope("self.", "self."), known)
    return lambda builder: abstract_copy(builder, instance, "self")


def reconstruct(instance: Any) -> dict[str, Any] | None:
    """The arguments, sizes left out, with which the class makes an instance like this one at any size.

    None if no choice of integers and defaults gives an instance of the same structure and shapes.
    """
    cls = type(instance)
    try:
        signature = signature_of_class(cls)
    except (AnnotationError, TypeError, ValueError):
        return None
    if not any(is_a_size(parameter) for parameter in signature.parameters):
        return None
    options = [list(_arguments(parameter, instance)) for parameter in signature.parameters]
    wanted = structure_of(instance)
    for values in itertools.islice(itertools.product(*options), _CALLS):
        values_by_name = dict(zip((parameter.name for parameter in signature.parameters), values, strict=True))
        # Equality of all shapes is the proof that the guess is right: the instance does not store its constructor's
        # call.
        if structure_of_call(cls, signature.parameters, values_by_name) == wanted:
            sizes = [p.name for p in signature.parameters if is_a_size(p) and p.required]
            counts = counts_of(cls, signature.parameters, values_by_name, sizes)
            return {name: value for name, value in values_by_name.items() if name not in sizes or name in counts}
    return None


def _arguments(parameter: Parameter, instance: Any) -> Iterator[Any]:
    """Values that the constructor may have received for a parameter, the likeliest first."""
    own = dims_of_instance(instance, PROOF).sizes
    field = getattr(instance, parameter.name, None)
    if is_a_size(parameter):
        likely = [field, own.get(parameter.name), None if parameter.required else parameter.default]
        sure = [value for value in likely if type(value) is int]
        leaves = [leaf for leaf in jax.tree.leaves(opened(instance)) if is_array(leaf)]
        # An attribute of the parameter's name holds its value; without one, any size or integer of the instance may.
        nodes = dict(objects_in(instance)).values() or (instance,)
        fields = [form.values(node).values() for node in nodes if (form := form_of_value(node)) is not None]
        numbers = {value for values in fields for value in values if type(value) is int}
        yield from dict.fromkeys(sure[:1] or sorted(numbers.union(*(leaf.shape for leaf in leaves))))
        return
    if is_a_key(parameter.annotation):
        yield random_keys()[0]
        return
    if holds_objects(parameter.annotation) or (
        isinstance(parameter.annotation, Anything) and parameter.name in BY_NAME
    ):
        yield object_for(parameter)
        return
    if field is not None and not any(map(is_array, jax.tree.leaves(field))):
        yield field
    if not parameter.required:
        yield parameter.default
    if parameter.annotation == Instance(bool):
        yield from (True, False)
