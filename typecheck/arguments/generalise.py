"""Generalising an instance: its arrays become abstract ones of other sizes, so that equal sizes hide nothing.

There are two ways. If the class, called with integers that can be read off the instance, gives an instance of the same
structure and shapes, then those integers are what varies: the constructor knows how the sizes of submodules hang
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
from weft.typecheck.arguments.builder import Builder, Scope, key_dtype
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
from weft.typecheck.language.forms import form_of_value
from weft.typecheck.language.objects import objects_in, opened
from weft.typecheck.language.signatures import Parameter
from weft.typecheck.matching.policies import PROOF
from weft.typecheck.matching.records import dims_of_instance

# How many choices of arguments are tried.
_CALLS = 120


def generalise(instance: Any) -> Callable[[Builder], Any]:
    """A function that builds abstract instances like a given one."""
    known = reconstruct(instance)
    if known is not None:
        return lambda builder: build_module(builder, type(instance), "self", Scope("self.", "self."), known)
    return lambda builder: abstract_copy(builder, instance, "self")


def reconstruct(instance: Any) -> dict[str, Any] | None:
    """What to give to the class to get an instance like this one of any size: all arguments but the sizes.

    None if no choice of integers and of defaults gives an instance of the same structure and shapes.
    """
    cls = type(instance)
    try:
        signature = signature_of_class(cls)
    except (AnnotationError, TypeError, ValueError):
        return None
    if not any(is_a_size(one) for one in signature.parameters):
        return None
    options = [list(_arguments(one, instance)) for one in signature.parameters]
    wanted = structure_of(instance)
    for values in itertools.islice(itertools.product(*options), _CALLS):
        given = dict(zip((one.name for one in signature.parameters), values, strict=True))
        if structure_of_call(cls, signature.parameters, given) == wanted:
            sizes = [one.name for one in signature.parameters if is_a_size(one) and one.required]
            counts = counts_of(cls, signature.parameters, given, sizes)
            return {name: value for name, value in given.items() if name not in sizes or name in counts}
    return None


def _arguments(parameter: Parameter, instance: Any) -> Iterator[Any]:
    """Values that a constructor may have been given, the likeliest first."""
    own = dims_of_instance(instance, PROOF).sizes
    field = getattr(instance, parameter.name, None)
    if is_a_size(parameter):
        likely = [field, own.get(parameter.name), None if parameter.required else parameter.default]
        sure = [one for one in likely if type(one) is int]
        leaves = [leaf for leaf in jax.tree.leaves(opened(instance)) if is_array(leaf)]
        # What is kept under the argument's name was given for it; else it may be any size or number in the instance.
        sizes = sorted({size for leaf in leaves for size in leaf.shape} | set(_static_numbers(instance)))
        yield from dict.fromkeys(sure[:1] or sizes)
        return
    if is_a_key(parameter.annotation):
        yield jax.ShapeDtypeStruct((), key_dtype())
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


def _static_numbers(instance: Any) -> Iterator[int]:
    """The integers among the fields of an instance; of an object, those of the objects in it, too."""
    for one in dict(objects_in(instance)).values() or (instance,):
        form = form_of_value(one)
        values = form.values(one).values() if form is not None else ()
        yield from (value for value in values if type(value) is int)
