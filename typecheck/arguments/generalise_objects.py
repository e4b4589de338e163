"""Generalising an object: a copy of it whose boxes hold abstract arrays of other sizes.

This is the second way of `generalise`, where the class cannot be called with other sizes. The arrays take the dims that
the attributes' annotations declare; for the layer's own modules a table says what they mean (`Layer.shapes`). What
declares nothing keeps its shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from weft.core.records.leaves import is_array
from weft.typecheck.arguments.builder import Builder, Scope
from weft.typecheck.arguments.new_shapes import new_shape
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import ANY_DTYPE, Annotation, Anything, ArrayOf
from weft.typecheck.language.dims import Shape
from weft.typecheck.language.names import names_of_class
from weft.typecheck.language.objects import Layer, children_of, is_library, is_size, layer_of, objects_in, unboxed
from weft.typecheck.language.signatures import fields_of
from weft.typecheck.matching.arrays import settle
from weft.typecheck.matching.bindings import Bindings, Mismatch, Slot
from weft.typecheck.matching.compiling import check_of
from weft.typecheck.matching.policies import PROOF
from weft.typecheck.matching.record_plans import record_plan
from weft.typecheck.matching.scopes import bind_numbers, numbers_of


def abstract_object(builder: Builder, instance: Any, path: str) -> Any:
    """An abstract object like a given one, with the dims that its annotations declare; the given one stays as it is."""
    layer = layer_of(type(instance))
    assert layer is not None
    copy = layer.clone(instance)
    found = {place: (one, _dims(one, layer)) for place, one in objects_in(copy, path)}
    clashing = _clashing(dims for _, dims in found.values())
    for place, (one, dims) in found.items():
        _generalise(builder, one, f"{place}.", dims, clashing, layer)
    return copy


def _clashing(found: Any) -> frozenset[str]:
    sizes: dict[str, set[int]] = {}
    for dims in found:
        for name, size in dims.items():
            sizes.setdefault(name, set()).add(size)
    return frozenset(name for name, one in sizes.items() if len(one) > 1)


def _annotations(cls: type, layer: Layer) -> dict[str, Annotation]:
    if is_library(cls):
        shapes = layer.shapes.get(cls.__name__, {})
        return {name: ArrayOf(Any, ANY_DTYPE, Shape.parse(text)) for name, text in shapes.items()}
    return {field.name: field.annotation for field in fields_of(cls)}


def _dims(one: Any, layer: Layer) -> dict[str, int]:
    """The dims that an object's annotations name, with their sizes in it."""
    annotations, attributes = _annotations(type(one), layer), layer.attributes(one)
    bindings = Bindings(Slot("field", "", type(one), Anything()), lambda: {"self": one})
    for name, annotation in annotations.items():
        check, kept = check_of(annotation, PROOF), bindings.snapshot()
        if check is None:
            continue
        try:
            check(attributes.get(name), bindings)
            settle(bindings, finally_=False)
        except (Mismatch, AnnotationError):
            bindings.restore(kept)
    named = names_of_class(type(one)) | bindings.sizes.keys()
    bind_numbers(
        bindings, {name: size for name, size in numbers_of(one, record_plan(type(one), PROOF)).items() if name in named}
    )
    return {name: size for name, size in bindings.sizes.items() if isinstance(size, int)}


def _generalise(
    builder: Builder, one: Any, path: str, dims: Mapping[str, int], clashing: frozenset[str], layer: Layer
) -> None:
    scope = Scope(path, path, loose=is_library(type(one)))
    for name, size in dims.items():
        plain = f"{name}[{size}]" if name in clashing else name
        key = path + name if builder.assignment.apart else plain
        scope.bound[name] = builder.keyed(key, name, scope, original=size)
    for name in dims.keys() & layer.attributes(one).keys():
        layer.set_attribute(one, name, scope.bound[name])
    scope.values["self"] = one
    annotations = _annotations(type(one), layer)
    for name, value in list(layer.attributes(one).items()):
        annotation = annotations.get(name, Anything())
        if is_array(value) and not isinstance(value, layer.box) and not is_size(value):
            layer.set_attribute(one, name, _abstract(builder, annotation, value, f"{path}{name}", scope))
        else:
            _fill(builder, annotation, value, f"{path}{name}", scope, layer)


def _fill(builder: Builder, annotation: Annotation, value: Any, place: str, scope: Scope, layer: Layer) -> None:
    """Makes the boxes in an attribute abstract; objects in it are generalised by themselves."""
    if isinstance(value, layer.box):
        held = unboxed(value)
        layer.set_value(
            value,
            jax.tree.map(
                lambda leaf: _abstract(builder, annotation, leaf, place, scope) if is_array(leaf) else leaf, held
            ),
        )
    elif layer_of(type(value)) is None or is_library(type(value)):
        item = annotation.parts[-1] if annotation.parts else annotation
        for key, child in children_of(value).items():
            if isinstance(child, layer.box):
                _fill(builder, item, child, f"{place}[{key!r}]", scope, layer)


def _abstract(builder: Builder, annotation: Annotation, value: Any, place: str, scope: Scope) -> Any:
    return jax.ShapeDtypeStruct(new_shape(builder, annotation, value, place, scope), value.dtype)
