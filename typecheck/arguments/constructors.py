"""Constructors: the parameters of a class, which of them are sizes or counts, and the structure of an instance."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import jax
from weft.core.caches import cached_by
from weft.core.edge.names import is_generated
from weft.core.records.leaves import is_array
from weft.typecheck.arguments.abstract import abstractly
from weft.typecheck.arguments.builder import Assignment, Builder, Scope, random_keys
from weft.typecheck.arguments.values import BY_NAME, holds_objects, load_values
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import NONE, Annotation, Anything, ArrayOf, Instance, members_of
from weft.typecheck.language.forms import OBJECT, form_of, layer_of
from weft.typecheck.language.signatures import (
    Parameter,
    Signature,
    fields_of,
    has_converter,
    names_of_class,
    signature_of,
    with_keys,
)


@cached_by("class")
def signature_of_class(cls: type) -> Signature:
    """The parameters for constructing a record or object: those of `__init__`, or the fields of a dataclass."""
    # The annotations of the fields stand for the parameters of a generated `__init__`.
    if not getattr(cls.__init__, "__code__", None) or not is_generated(cls.__init__.__code__):
        written = signature_of(cls.__init__, cls)
        parameters = with_keys(written.parameters[1:])
        if form_of(cls) is OBJECT:
            load_values(cls)
        parameters = tuple(_as_its_class_says(parameter, cls) for parameter in parameters)
        return Signature(written.function, parameters, NONE, owner=cls)
    annotations = {field.name: field.annotation for field in fields_of(cls)}
    parameters = tuple(
        Parameter(p.name, annotations.get(p.name, Anything()), p.kind, p.default)
        for p in list(inspect.signature(cls.__init__).parameters.values())[1:]
    )
    return Signature(cls.__init__, parameters, NONE, owner=cls)


def _as_its_class_says(parameter: Parameter, cls: type) -> Parameter:
    """A parameter with the annotation of its field, if the parameter has no annotation or the field has a converter.

    A parameter that still has none, with the name of a dim of the class, is a size.
    """
    annotation, required = parameter.annotation, parameter.required
    bare = isinstance(annotation, Anything) and required and form_of(cls) is not None
    if bare or has_converter(cls, parameter.name):
        annotation = next((field.annotation for field in fields_of(cls) if field.name == parameter.name), annotation)
    if isinstance(annotation, Anything) and required and parameter.name in names_of_class(cls):
        annotation = Instance(int)
    return parameter if annotation is parameter.annotation else dataclasses.replace(parameter, annotation=annotation)


def counts_of(cls: type, parameters: tuple[Parameter, ...], values: Mapping[str, Any], sizes: list[str]) -> list[str]:
    """The integer parameters that set how many submodules an instance has: another number gives another structure."""

    def number_of_arrays(values: Mapping[str, Any]) -> int | None:
        made = structure_of_call(cls, parameters, values)
        return None if made is None else len(made[1])

    usual = number_of_arrays(values)
    larger = {name: number_of_arrays({**values, name: values[name] + 1}) for name in sizes}
    return [name for name, number in larger.items() if None not in (usual, number) and number != usual]


@cached_by("class")
def counts_of_class(cls: type) -> tuple[str, ...]:
    """`counts_of` for a class whose constructor takes only sizes, random keys, objects and defaults; else nothing."""
    try:
        parameters = signature_of_class(cls).parameters
    except (AnnotationError, TypeError, ValueError):
        return ()
    sizes = [parameter.name for parameter in parameters if parameter.required and is_a_size(parameter)]
    values: dict[str, Any] = {parameter.name: parameter.default for parameter in parameters if not parameter.required}
    for parameter in parameters:
        if parameter.required and parameter.name not in sizes:
            if is_a_key(parameter.annotation):
                values[parameter.name] = random_keys()[0]
            elif holds_objects(parameter.annotation):
                values[parameter.name] = object_for(parameter)
            else:
                return ()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if len(sizes) < 2 or any(parameter.kind in variadic for parameter in parameters):
        return ()
    # Small, as one of them may be a number of layers; 12 for constructors that halve a size or take a quarter of it.
    for size in (2, 12):
        values |= dict.fromkeys(sizes, size)
        if structure_of_call(cls, parameters, values) is not None:
            return tuple(counts_of(cls, parameters, values, sizes))
    return ()


def is_a_size(parameter: Parameter) -> bool:
    members = members_of(parameter.annotation)
    return Instance(int) in members and Instance(bool) not in members


def is_a_key(annotation: Annotation) -> bool:
    return any(
        isinstance(member, ArrayOf) and member.dtype.accepted == ("prng_key",) for member in members_of(annotation)
    )


def object_for(parameter: Parameter) -> Any:
    builder, scope = Builder(Assignment()), Scope()
    if isinstance(parameter.annotation, Anything):
        return BY_NAME[parameter.name](builder, parameter.name, scope)
    return builder.build(parameter.annotation, parameter.name, scope)


def structure_of(tree: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    layer = layer_of(type(tree))
    if layer is not None:
        return layer.structure(tree)
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [(leaf.shape, leaf.dtype) if is_array(leaf) else ((), type(leaf)) for leaf in leaves]


def structure_of_call(
    cls: type, parameters: tuple[Parameter, ...], values: Mapping[str, Any]
) -> tuple[Any, list[tuple[Any, Any]]] | None:
    """The structure of what a class makes of some arguments; None if it refuses them."""
    # The arguments are passed by kind, as a caller would: a keyword-only parameter cannot be passed by position.
    args = [values[p.name] for p in parameters if p.kind is not p.kind.KEYWORD_ONLY and p.name in values]
    kwargs = {p.name: values[p.name] for p in parameters if p.kind is p.kind.KEYWORD_ONLY}
    try:
        return structure_of(abstractly(cls, *args, **kwargs))
    except Exception:  # the arguments are guesses, so any error of the constructor only says that a guess was wrong
        return None
