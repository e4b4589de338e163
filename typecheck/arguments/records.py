"""Builds records and objects: each class is called abstractly with arguments built from its own annotations."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
from weft.core.records.module import Module
from weft.typecheck.arguments.abstract import abstractly, abstractly_counted, closed, is_plain_class, opened
from weft.typecheck.arguments.builder import Builder, ConstructorCall, Scope, Unbuildable
from weft.typecheck.arguments.constructors import counts_of_class, signature_of_class
from weft.typecheck.arguments.parameters import build_arguments, defaulted, string_of
from weft.typecheck.arguments.protocols import is_protocol, protocol_object
from weft.typecheck.arguments.stand_ins import any_callable
from weft.typecheck.arguments.subclasses import concrete_subclasses, is_abstract
from weft.typecheck.arguments.values import holds_objects, is_made_of_its_own, value_of
from weft.typecheck.language.annotations import Instance, RecordOf, holds_arrays
from weft.typecheck.language.forms import form_of, has_own_dims, is_library
from weft.typecheck.language.signatures import Parameter, fields_of, names_of_class
from weft.typecheck.sizes.dim import Dim
from weft.typecheck.sizes.space import Space

# The base classes themselves have no fields: the caller knows which subclass is meant and whether it is called.
_BASES = (eqx.Module, Module)


def record_of(builder: Builder, spec: RecordOf, place: str, scope: Scope) -> Any:
    """An instance of a record: a Module or object by its constructor, a plain record from its fields."""
    shares = spec.form.plain and not builder.assignment.names_per_record and not scope.many
    inner = Scope(f"{place}.", scope.contract if shares else f"{place}.", lead=scope.lead, loose=is_library(spec.cls))
    for child, dim in spec.dims.links if spec.dims else ():
        (inner.bound[child],) = builder.dim(dim, f"{place} {child}", scope)
    if spec.form.mutable and not is_library(spec.cls):
        builder.vocabulary[inner.contract] = names_of_class(spec.cls)
    # Counts are 2 and no prime: a prime from the sizes would make a network of thirteen layers.
    if not spec.form.plain:
        return build_module(builder, spec.cls, place, inner, dict.fromkeys(counts_of_class(spec.cls), 2))
    if is_abstract(spec.cls):
        return _of_subclass(builder, spec.cls, place, inner, None)
    inner.owner = spec.cls
    values = dict[str, Any]()
    defaults = {field.name: field.default for field in spec.form.fields(spec.cls)}
    for field in fields_of(spec.cls):
        place, default = f"{inner.path}{field.name}", defaults[field.name]
        is_array = holds_arrays(field.annotation) or holds_objects(field.annotation)
        if field.required or ((default is ... or is_array) and builder.choose(f"{place} given", 2) == 0):
            values[field.name] = builder.build(field.annotation, place, inner)
        elif default is not ... and not is_array:
            if default is dataclasses.MISSING:  # a factory makes it, anew for each instance
                default = spec.cls.__dataclass_fields__[field.name].default_factory()  # type: ignore[attr-defined]
            parameter = Parameter(field.name, field.annotation, inspect.Parameter.KEYWORD_ONLY, default)
            values[field.name] = defaulted(builder, parameter, place, inner, frozenset())
    return spec.cls(**values)


def instance_of(builder: Builder, spec: Instance, place: str, scope: Scope) -> Any:
    """A value of a class without annotated fields: by a rule for the class, or by its constructor."""
    if spec.cls is str:
        return string_of(builder, place, scope)
    if spec.cls is Callable:
        return any_callable(builder, place, scope)
    if is_protocol(spec.cls) and is_plain_class(spec.cls):
        return protocol_object(builder, spec.cls, place, scope)
    if is_made_of_its_own(spec.cls) or not is_plain_class(spec.cls):
        return value_of(builder, spec, place, scope)
    # A constructor that takes an instance of its own class, such as a tree's node, would be called without end.
    if spec.cls in builder.inside:
        raise Unbuildable(f"{place}: a {spec.cls.__name__} is made from another {spec.cls.__name__}, without end")
    builder.inside = (*builder.inside, spec.cls)
    # A namespace or configuration may be made empty, and filled later by its user.
    parameters = signature_of_class(spec.cls).parameters
    names_anything = hasattr(spec.cls, "__getattr__") or any(p.kind is p.kind.VAR_KEYWORD for p in parameters)
    if not any(p.required for p in parameters) and (names_anything or issubclass(spec.cls, Mapping)):
        builder.vague.add(place)
    try:
        return build_module(builder, spec.cls, place, Scope(f"{place}.", f"{place}.", lead=scope.lead))
    finally:
        builder.inside = builder.inside[:-1]


def build_module(builder: Builder, cls: type, place: str, scope: Scope, passed: Mapping[str, Any] | None = None) -> Any:
    """An abstract instance of a class of records or objects, called with what its annotations say.

    Raises:
        Unbuildable: if the class is abstract and has no other, or its arguments cannot be built.
    """
    if is_abstract(cls):
        return _of_subclass(builder, cls, place, scope, passed)
    signature = signature_of_class(cls)
    if cls in _BASES:
        builder.vague.add(place)
    if is_library(cls) and not any(parameter.required for parameter in signature.parameters):
        raise Unbuildable(f"{place}: the annotation {cls.__name__} does not say which arrays an instance has")
    try:
        args, kwargs = build_arguments(builder, signature, scope, passed)
    except Unbuildable:
        # An `__init__` without annotations says nothing, where annotated fields may still say what an instance holds.
        form = form_of(cls)
        fields = fields_of(cls) if has_own_dims(cls) else ()
        told = bool(fields) and all(holds_arrays(field.annotation) or not field.required for field in fields)
        if passed or not told or form is None:
            raise
        required = (field for field in fields if field.required)
        return form.make(
            cls, {field.name: builder.build(field.annotation, scope.path + field.name, scope) for field in required}
        )
    made = _constructed(builder, cls, args, kwargs)
    builder.calls.append(ConstructorCall(made, cls, args, kwargs))
    return made


def _of_subclass(builder: Builder, cls: type, place: str, scope: Scope, passed: Mapping[str, Any] | None) -> Any:
    """An instance of the subclass that the assignment names; if it names none, of the first that can be built."""
    # A sum of operators is an operator: a subclass that holds others of its base class would be built without end.
    classes = [] if cls in builder.standing_in else concrete_subclasses(cls)
    if not classes:
        raise Unbuildable(f"{place}: {cls.__qualname__} is abstract, and no subclass can stand for it")
    option = f"{place} class"
    builder.classes[option] = tuple(subclass.__name__ for subclass in classes)
    chosen = builder.choose(option, len(classes))
    refused: list[str] = []
    for number in range(chosen, len(classes)) if option not in builder.assignment.options else (chosen,):
        # A subclass that cannot be built has noted its dims and options already, and the search would vary them.
        subclass = classes[number]
        state = builder.state()
        builder.standing_in = (*builder.standing_in, cls)
        inner = dataclasses.replace(
            scope, bound=dict(scope.bound), variadics=dict(scope.variadics), values=dict(scope.values)
        )
        try:
            counts = dict.fromkeys(counts_of_class(subclass), 2)
            made = build_module(builder, subclass, place, inner, {**counts, **(passed or {})} or None)
        except Unbuildable as reason:
            builder.restore(state)
            refused.append(str(reason))
            continue
        finally:
            builder.standing_in = builder.standing_in[:-1]
        builder.chosen_classes[option] = number
        return made
    raise Unbuildable(
        f"{place}: {cls.__qualname__} is abstract; {classes[chosen].__name__} cannot be made: {refused[0]}"
    )


def _constructed(builder: Builder, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a class abstractly, or makes new objects of an earlier trial's result for the same arguments.

    Where sizes are symbolic, the trace then asks what the constructor asked of them in the earlier trial.
    """
    leaves, treedef = jax.tree.flatten(opened((args, kwargs)))
    key = cls, treedef, tuple(map(_key_of, leaves))
    space = next((size.space for size in builder.sizes.values() if type(size) is Dim), None) or Space()
    try:
        known = builder.known.get(key)
    except TypeError:  # something that cannot be hashed
        return abstractly(cls, *args, **kwargs)
    if known is None:
        with space.making() as part:
            # With sizes of this part, which are sizes of each trace that reuses the instance.
            own_args, own_kwargs = closed(treedef.unflatten(map(_anew, leaves)))
            made, operations = abstractly_counted(cls, own_args, own_kwargs)
            builder.operations += operations
        # The flattened result is stored, not the instance: a trial may mutate its objects, and the next needs fresh
        # ones.
        known = builder.made[key] = *jax.tree.flatten(opened(made)), part
    else:
        space.reuse(known[2])
    leaves, treedef, _ = known
    return closed(treedef.unflatten(leaves))


def _key_of(leaf: Any) -> Any:
    """A key that says what a constructor is called with: of an abstract array its shape and dtype."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return (*map(_key_of, leaf.shape), leaf.dtype)
    return leaf.at_its_number if type(leaf) is Dim else leaf


def _anew(leaf: Any) -> Any:
    """A leaf whose sizes are made anew, in the part of the trace that is being made."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(tuple(map(_anew, leaf.shape)), leaf.dtype, weak_type=leaf.weak_type)
    return Dim(leaf.space, leaf.terms) if type(leaf) is Dim else leaf
