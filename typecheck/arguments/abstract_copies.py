"""Copies of an instance whose arrays are abstract and have the dims that the class's annotations declare.

`generalise` uses this where it cannot call the class with other sizes. One name is one size, unless the instance
itself has several sizes for that name. Arrays whose annotation declares no dims keep their shapes; a table gives the
dims of the layers of equinox and of NNX.

Records are rebuilt bottom-up. A graph of objects may share nodes and hold cycles, so the graph is cloned and the
boxes of the clone are filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
from weft.core.records.configuration import field_values
from weft.core.records.leaves import is_array
from weft.typecheck.arguments.builder import Builder, Scope
from weft.typecheck.arguments.new_shapes import new_shape
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import ANY_DTYPE, Annotation, Anything, ArrayOf
from weft.typecheck.language.dims import Shape
from weft.typecheck.language.forms import (
    MODULE,
    OBJECT,
    ObjectLayer,
    children_of,
    form_of_value,
    is_library,
    is_module,
    is_size,
    layer_of,
    objects_in,
    sizes_of_object,
    unboxed,
)
from weft.typecheck.language.signatures import fields_in_holes, fields_of, names_of_class
from weft.typecheck.matching.arrays import settle
from weft.typecheck.matching.bindings import Bindings, Mismatch, Slot
from weft.typecheck.matching.compiling import check_of
from weft.typecheck.matching.policies import PROOF
from weft.typecheck.matching.scopes import bind_numbers

# Without this table a proof would keep the concrete sizes of each `eqx.nn.Linear`, and equal sizes would hide mistakes.
# Fields of equinox's layers, whose own annotations say only that they are arrays.
LAYER_SHAPES: dict[str, dict[str, str]] = {
    "Linear": {"weight": "out_features in_features", "bias": "out_features"},
    "Embedding": {"weight": "num_embeddings embedding_size"},
    "GRUCell": {"weight_ih": "3*hidden_size input_size", "weight_hh": "3*hidden_size hidden_size",
                "bias": "3*hidden_size", "bias_n": "hidden_size"},
    "LSTMCell": {"weight_ih": "4*hidden_size input_size", "weight_hh": "4*hidden_size hidden_size",
                 "bias": "4*hidden_size"},
}  # fmt: skip


def abstract_copy(builder: Builder, instance: Any, place: str) -> Any:
    """Returns a copy of an instance with abstract arrays; the instance itself is not changed.

    Args:
        builder: gives the sizes.
        instance: a record or an object.
        place: how messages refer to the instance.
    """
    object_layer = layer_of(type(instance))
    if object_layer is None:
        return _record(builder, instance, f"{place}.", _clashing(_dims(record) for record in _records(instance)))
    copy = object_layer.clone(instance)
    objects = {path: (record, _dims(record)) for path, record in objects_in(copy, place)}
    clashing = _clashing(dims for _, dims in objects.values())
    for path, (record, dims) in objects.items():
        _fill_object(builder, record, _scope(builder, record, f"{path}.", dims, clashing), dims, object_layer)
    return copy


def _clashing(dims_by_object: Iterable[Mapping[str, int]]) -> frozenset[str]:
    """Names that have different sizes in different records or objects, and so cannot be one size throughout."""
    sizes: dict[str, set[int]] = {}
    for dims in dims_by_object:
        for name, size in dims.items():
            sizes.setdefault(name, set()).add(size)
    return frozenset(name for name, size in sizes.items() if len(size) > 1)


def _records(node: Any) -> Iterator[Any]:
    """The records in a tree, outermost first; a record that the tree holds twice is yielded twice."""
    if is_module(node):
        yield node
    # Without the test of identity the record itself would be the only leaf, and its children would not be visited.
    for child in jax.tree.leaves(node, is_leaf=lambda child: child is not node and is_module(child)):
        if is_module(child) and child is not node:
            yield from _records(child)


def _annotations(cls: type) -> dict[str, Annotation]:
    """The annotation of each field of a class, or the shapes that the tables give for a library's layer."""
    # How classes of mutable objects (weft.nnx) are read; None for a record's class.
    object_layer = layer_of(cls)
    shapes_of_layer = {} if object_layer is None else object_layer.shapes
    shapes = LAYER_SHAPES if cls.__module__.startswith("equinox.") else shapes_of_layer
    # The table is by name, and a user's class may have such a name: its own annotations count then.
    known = shapes.get(cls.__name__, {}) if object_layer is None or is_library(cls) else {}
    tabled: dict[str, Annotation] = {name: ArrayOf(Any, ANY_DTYPE, Shape.parse(text)) for name, text in known.items()}
    if object_layer is not None and is_library(cls):
        return tabled
    return {field.name: field.annotation for field in fields_of(cls) if not field.static} | tabled


def _dims(instance: Any) -> dict[str, int]:
    """The size of each dim that the class of an instance names, as the arrays and integers of the instance have it."""
    form = form_of_value(instance)
    assert form is not None
    annotations, values = _annotations(type(instance)), form.values(instance)
    bindings = Bindings(Slot("field", "", type(instance), Anything()), lambda: {"self": instance})
    for name, annotation in annotations.items():
        # Each field is tried by itself: one field that does not fit must not lose the dims that the others bind.
        check = check_of(annotation, PROOF)
        before = bindings.snapshot()
        if check is None:
            continue
        try:
            check(values.get(name), bindings)
            settle(bindings, finally_=False)
        except (Mismatch, AnnotationError):
            bindings.restore(before)
    # An expression such as `{self.width}` binds nothing, so the fields that expressions read are named here.
    named = {*bindings.sizes, *fields_in_holes(annotations.values())}
    if form is OBJECT:
        named |= names_of_class(type(instance))
        values = {**values, **sizes_of_object(instance)}
    bind_numbers(bindings, {name: value for name, value in values.items() if name in named})
    return {name: size for name, size in bindings.sizes.items() if isinstance(size, int)}


def _scope(builder: Builder, instance: Any, path: str, dims: Mapping[str, int], clashing: frozenset[str]) -> Scope:
    """The scope of a record or object, in which each of its dims has a size for its key."""
    scope = Scope(path, path, loose=is_library(type(instance)))
    for name, size in dims.items():
        # The size in the key keeps two layers of different sizes apart, and joins the layers whose sizes are equal.
        plain = f"{name}[{size}]" if name in clashing else name
        key = path + name if builder.assignment.names_per_record else plain
        scope.bound[name] = builder.keyed(key, name, scope, original=size)
    scope.values["self"] = instance
    return scope


def _abstract(builder: Builder, annotation: Annotation, value: Any, place: str, scope: Scope) -> Any:
    return jax.ShapeDtypeStruct(new_shape(builder, annotation, value, place, scope), value.dtype)


def _record(builder: Builder, record: Any, path: str, clashing: frozenset[str]) -> Any:
    annotations, values, dims = _annotations(type(record)), dict(field_values(record)), _dims(record)
    scope = _scope(builder, record, path, dims, clashing)
    # Integer fields change with the arrays: `self.width` in a reshape must be the new size of the dim `width`.
    values |= {name: scope.bound[name] for name in dims if type(values.get(name)) is int}
    scope.values["self"] = MODULE.make(type(record), values)  # for expressions that read its integers
    for name, value in list(values.items()):
        # A static field without an annotated shape is configuration, and stays as it is.
        field = type(record).__dataclass_fields__.get(name)
        is_static = field is not None and field.metadata.get("static", False)
        if name in annotations or is_module(value) or not is_static:
            annotation = annotations.get(name, Anything())
            values[name] = _field(builder, annotation, value, f"{path}{name}", scope, clashing)
    for name, axes in scope.variadics.items():
        if isinstance(values.get(name), tuple) and len(values[name]) == len(axes):
            values[name] = axes  # a configured shape, such as LayerNorm's
    return MODULE.make(type(record), values)


def _field(
    builder: Builder, annotation: Annotation, value: Any, place: str, scope: Scope, clashing: frozenset[str]
) -> Any:
    """The value of a field with abstract arrays, and with copies of the records in it."""

    def ends(node: Any) -> bool:
        return is_array(node) or is_module(node)

    def changed(keys: Any, leaf: Any) -> Any:
        where = place + jax.tree_util.keystr(keys)
        if is_module(leaf):
            return _record(builder, leaf, f"{where}.", clashing)
        return _abstract(builder, annotation, leaf, where, scope) if is_array(leaf) and not is_size(leaf) else leaf

    return jax.tree_util.tree_map_with_path(changed, value, is_leaf=ends)


def _fill_object(
    builder: Builder, instance: Any, scope: Scope, dims: Mapping[str, int], object_layer: ObjectLayer
) -> None:
    """Makes the arrays of one object abstract, and turns its integers into the sizes that they name."""
    # An object keeps sizes of its constructor as attributes: `self.width` must change with the arrays that have it.
    for name in dims.keys() & object_layer.attributes(instance).keys():
        object_layer.set_attribute(instance, name, scope.bound[name])
    annotations = _annotations(type(instance))
    for name, value in list(object_layer.attributes(instance).items()):
        annotation = annotations.get(name, Anything())
        if is_array(value) and not isinstance(value, object_layer.box) and not is_size(value):
            object_layer.set_attribute(
                instance, name, _abstract(builder, annotation, value, f"{scope.path}{name}", scope)
            )
        else:
            _fill_boxes(builder, annotation, value, f"{scope.path}{name}", scope, object_layer)


def _fill_boxes(
    builder: Builder, annotation: Annotation, value: Any, place: str, scope: Scope, object_layer: ObjectLayer
) -> None:
    """Makes the boxes in an attribute abstract; `abstract_copy` visits the objects inside the attribute separately."""
    if isinstance(value, object_layer.box):
        abstract = jax.tree.map(
            lambda leaf: _abstract(builder, annotation, leaf, place, scope) if is_array(leaf) else leaf, unboxed(value)
        )
        object_layer.set_value(value, abstract)
    elif layer_of(type(value)) is None or is_library(type(value)):
        item = annotation.parts[-1] if annotation.parts else annotation
        for key, child in children_of(value).items():
            if isinstance(child, object_layer.box):
                _fill_boxes(builder, item, child, f"{place}[{key!r}]", scope, object_layer)
