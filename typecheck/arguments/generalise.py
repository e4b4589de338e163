"""Generalising an instance: its arrays become abstract ones of other sizes, so that equal sizes hide nothing.

There are two ways. If the class, called with integers that can be read off the instance, gives a record of the same
structure and shapes, then those integers are what varies: the constructor knows how the sizes of submodules hang
together. Otherwise each array takes the dims that its field's annotation declares, one name one size, and what the
program joins across submodules is found by the search (`verify_search`). Arrays whose annotation declares no dims keep
their shapes; for equinox's own layers a table says what they mean.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
from weft.core.records.configuration import field_values, stored
from weft.core.records.leaves import is_array, keeps_numbers
from weft.typecheck.arguments.abstract import abstractly
from weft.typecheck.arguments.arguments import build_module, signature_of_class
from weft.typecheck.arguments.builder import Assignment, Builder, Scope, key_dtype
from weft.typecheck.arguments.generalise_objects import abstract_object
from weft.typecheck.arguments.new_shapes import new_shape
from weft.typecheck.arguments.values import BY_NAME, holds_objects
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import ANY_DTYPE, Annotation, Anything, ArrayOf, Instance, members_of
from weft.typecheck.language.dims import Shape, SymbolicDim
from weft.typecheck.language.forms import OBJECT, form_of_value
from weft.typecheck.language.names import shapes_in
from weft.typecheck.language.objects import (
    attributes_of,
    layer_of,
    objects_in,
    opened,
)
from weft.typecheck.language.signatures import Parameter, fields_of
from weft.typecheck.matching.arrays import settle
from weft.typecheck.matching.bindings import Bindings, Mismatch, Slot
from weft.typecheck.matching.compiling import check_of
from weft.typecheck.matching.policies import PROOF
from weft.typecheck.matching.records import dims_of_instance

_CALLS = 120

# Fields of equinox's layers, whose own annotations say only that they are arrays.
LAYER_SHAPES: dict[str, dict[str, str]] = {
    "Linear": {"weight": "out_features in_features", "bias": "out_features"},
    "Embedding": {"weight": "num_embeddings embedding_size"},
    "GRUCell": {"weight_ih": "3*hidden_size input_size", "weight_hh": "3*hidden_size hidden_size",
                "bias": "3*hidden_size", "bias_n": "hidden_size"},
    "LSTMCell": {"weight_ih": "4*hidden_size input_size", "weight_hh": "4*hidden_size hidden_size",
                 "bias": "4*hidden_size"},
}  # fmt: skip


def generalise(instance: Any) -> Callable[[Builder], Any]:
    """A function that builds abstract instances like a given one."""
    known = reconstruct(instance)
    if known is not None:
        return lambda builder: build_module(builder, type(instance), "self", Scope("self.", "self."), known)
    if form_of_value(instance) is OBJECT:
        return lambda builder: abstract_object(builder, instance, "self")
    return lambda builder: abstract_record(builder, instance, "self.")


def abstract_record(builder: Builder, record: Any, path: str) -> Any:
    """An abstract record like a given one, with the dims that its annotations declare."""
    return _like(builder, record, path, _clashing_names(record))


def reconstruct(instance: Any) -> dict[str, Any] | None:
    """What to give to the class to get an instance like this one of any size: all arguments but the sizes.

    None if no choice of integers and of defaults gives an instance of the same structure and shapes.
    """
    cls = type(instance)
    try:
        signature = signature_of_class(cls)
    except (AnnotationError, TypeError, ValueError):
        return None
    if not any(_is_size(one) for one in signature.parameters):
        return None
    options = [list(_arguments(one, instance)) for one in signature.parameters]
    wanted = _structure(instance)
    for values in itertools.islice(itertools.product(*options), _CALLS):
        given = dict(zip((one.name for one in signature.parameters), values, strict=True))
        if _structure_of_call(cls, signature.parameters, given) == wanted:
            sizes = [one.name for one in signature.parameters if _is_size(one) and one.required]
            counts = counts_of(cls, signature.parameters, given, sizes)
            return {name: value for name, value in given.items() if name not in sizes or name in counts}
    return None


def counts_of(cls: type, parameters: tuple[Parameter, ...], given: Mapping[str, Any], sizes: list[str]) -> list[str]:
    """The integers that say how many submodules there are: another number gives another structure."""
    base = _structure_of_call(cls, parameters, given)
    found = []
    for name in sizes:
        other = _structure_of_call(cls, parameters, {**given, name: given[name] + 1})
        if base is not None and other is not None and len(base[1]) != len(other[1]):
            found.append(name)
    return found


@functools.cache
def counts_of_class(cls: type) -> tuple[str, ...]:
    """The same for a class, as far as its constructor takes sizes, keys and defaults only."""
    try:
        parameters = signature_of_class(cls).parameters
    except (AnnotationError, TypeError, ValueError):
        return ()
    sizes = [one.name for one in parameters if one.required and _is_size(one)]
    given: dict[str, Any] = {one.name: one.default for one in parameters if not one.required}
    for one in parameters:
        if one.required and one.name not in sizes:
            if _is_key(one.annotation):
                given[one.name] = jax.ShapeDtypeStruct((), key_dtype())
            elif holds_objects(one.annotation):
                given[one.name] = _object_for(one)
            else:
                return ()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if len(sizes) < 2 or any(one.kind in variadic for one in parameters):
        return ()
    # Small, because one of them may be a number of layers; twelve for what halves a size, or takes a quarter of it.
    for size in (2, 12):
        given |= dict.fromkeys(sizes, size)
        if _structure_of_call(cls, parameters, given) is not None:
            return tuple(counts_of(cls, parameters, given, sizes))
    return ()


def _is_size(parameter: Parameter) -> bool:
    members = members_of(parameter.annotation)
    return Instance(int) in members and Instance(bool) not in members


def _arguments(parameter: Parameter, instance: Any) -> Iterator[Any]:
    """Values that a constructor may have been given, the likeliest first."""
    own = dims_of_instance(instance, PROOF).sizes
    field = getattr(instance, parameter.name, None)
    if _is_size(parameter):
        likely = [field, own.get(parameter.name), None if parameter.required else parameter.default]
        sure = [one for one in likely if type(one) is int]
        leaves = [leaf for leaf in jax.tree.leaves(opened(instance)) if is_array(leaf)]
        sizes = sorted({size for leaf in leaves for size in leaf.shape} | set(_static_numbers(instance)))
        yield from dict.fromkeys(sure[:1] or sizes)
        return
    if _is_key(parameter.annotation):
        yield jax.ShapeDtypeStruct((), key_dtype())
        return
    if holds_objects(parameter.annotation) or (
        isinstance(parameter.annotation, Anything) and parameter.name in BY_NAME
    ):
        yield _object_for(parameter)
        return
    if field is not None and not any(map(is_array, jax.tree.leaves(field))):
        yield field
    if not parameter.required:
        yield parameter.default
    if parameter.annotation == Instance(bool):
        yield from (True, False)


def _object_for(parameter: Parameter) -> Any:
    builder, scope = Builder(Assignment()), Scope()
    if isinstance(parameter.annotation, Anything):
        return BY_NAME[parameter.name](builder, parameter.name, scope)
    return builder.build(parameter.annotation, parameter.name, scope)


def _static_numbers(instance: Any) -> Iterator[int]:
    if form_of_value(instance) is OBJECT:
        for _, one in objects_in(instance):
            yield from (value for value in attributes_of(one).values() if type(value) is int)
        return
    for field in fields_of(type(instance)):
        value = getattr(instance, field.name, None)
        if type(value) is int:
            yield value


def _is_key(annotation: Annotation) -> bool:
    return any(isinstance(one, ArrayOf) and one.dtype.accepted == ("prng_key",) for one in members_of(annotation))


def _structure(tree: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    layer = layer_of(type(tree))
    if layer is not None:
        return layer.structure(tree)
    leaves, treedef = jax.tree.flatten(tree)
    return treedef, [(leaf.shape, leaf.dtype) if is_array(leaf) else ((), type(leaf)) for leaf in leaves]


def _structure_of_call(
    cls: type, parameters: tuple[Parameter, ...], given: Mapping[str, Any]
) -> tuple[Any, list[tuple[Any, Any]]] | None:
    args = [given[one.name] for one in parameters if one.kind is not one.kind.KEYWORD_ONLY and one.name in given]
    kwargs = {one.name: given[one.name] for one in parameters if one.kind is one.kind.KEYWORD_ONLY}
    try:
        return _structure(abstractly(lambda call: cls(*call[0], **call[1]), (args, kwargs)))
    except Exception:  # whatever a constructor raises on a guess only means that the guess is wrong
        return None


def _clashing_names(instance: Any) -> frozenset[str]:
    """Names that stand for different sizes in different submodules, so that they cannot be one."""
    sizes: dict[str, set[int]] = {}
    for record, _ in _records(instance, "self."):
        for name, size in _dims(record).items():
            sizes.setdefault(name, set()).add(size)
    return frozenset(name for name, found in sizes.items() if len(found) > 1)


def _records(node: Any, path: str) -> Iterator[tuple[eqx.Module, str]]:
    if isinstance(node, eqx.Module):
        yield node, path
    for keys, child in jax.tree_util.tree_leaves_with_path(
        node, is_leaf=lambda one: one is not node and isinstance(one, eqx.Module)
    ):
        if isinstance(child, eqx.Module) and child is not node:
            yield from _records(child, path + jax.tree_util.keystr(keys).removeprefix(".") + ".")


def _dims(record: eqx.Module) -> dict[str, int]:
    bindings = Bindings(Slot("field", "", type(record), Anything()), lambda: {"self": record})
    for name, annotation in _annotations(record).items():
        check, kept = check_of(annotation, PROOF), bindings.snapshot()
        if check is None:
            continue
        try:
            check(getattr(record, name, None), bindings)
            settle(bindings, finally_=False)
        except (Mismatch, AnnotationError):
            bindings.restore(kept)
    return {name: size for name, size in bindings.sizes.items() if isinstance(size, int)}


def _annotations(record: eqx.Module) -> dict[str, Annotation]:
    cls = type(record)
    table = LAYER_SHAPES.get(cls.__name__, {}) if cls.__module__.startswith("equinox.") else {}
    found: dict[str, Annotation] = {}
    for field in fields_of(cls):
        value = getattr(record, field.name, None)
        if field.name in table and is_array(value):
            found[field.name] = ArrayOf(Any, ANY_DTYPE, Shape.parse(table[field.name]))
        elif not field.static:
            found[field.name] = field.annotation
    return found


def _like(builder: Builder, record: Any, path: str, clashing: frozenset[str]) -> Any:
    """An abstract copy of a record, with the sizes of an assignment."""
    scope = Scope(path, path)
    dims = _dims(record)
    numbers = _numbers_of(record)
    for name, size in {**dims, **numbers}.items():
        plain = f"{name}[{size}]" if name in clashing else name
        key = path + name if builder.assignment.apart else plain
        scope.bound[name] = builder.keyed(key, name, scope, original=size)
    copy = object.__new__(type(record))
    values = field_values(record)
    values.update({name: scope.bound[name] for name in numbers})
    scope.values["self"] = copy
    annotations = _annotations(record)
    for name, value in list(values.items()):
        if name in annotations or isinstance(value, eqx.Module) or not _is_static(record, name):
            values[name] = _field(builder, annotations.get(name, Anything()), value, f"{path}{name}", scope, clashing)
    for name, axes in scope.variadics.items():
        if isinstance(values.get(name), tuple) and len(values[name]) == len(axes):
            values[name] = axes  # a configured shape, such as LayerNorm's
    kept = {name: stored(value) for name, value in values.items()} if keeps_numbers(type(record)) else values
    object.__getattribute__(copy, "__dict__").update(kept)
    return copy


def _is_static(record: eqx.Module, name: str) -> bool:
    field = type(record).__dataclass_fields__.get(name)
    return field is not None and bool(field.metadata.get("static", False))


def _numbers_of(record: eqx.Module) -> dict[str, int]:
    """Integer fields that are dims: called like one, or read by an expression in braces."""
    annotations = list(_annotations(record).values())
    read: set[str] = set(_dims(record))
    for annotation in annotations:
        for dim in (dim for shape in shapes_in(annotation) for dim in shape.dims):
            if isinstance(dim, SymbolicDim):
                for piece in dim.pieces:
                    source = getattr(piece, "source", "")
                    read |= {part.removeprefix("self.") for part in source.split() if part.startswith("self.")}
    values = {name: getattr(record, name, None) for name in type(record).__dataclass_fields__}
    return {name: value for name, value in values.items() if name in read and type(value) is int}


def _field(
    builder: Builder, annotation: Annotation, value: Any, place: str, scope: Scope, clashing: frozenset[str]
) -> Any:
    if isinstance(value, eqx.Module):
        return _like(builder, value, f"{place}.", clashing)
    if not is_array(value):
        inner = jax.tree.leaves(value, is_leaf=lambda one: is_array(one) or isinstance(one, eqx.Module))
        if inner and not (len(inner) == 1 and inner[0] is value):
            return jax.tree_util.tree_map_with_path(
                lambda keys, one: _field(builder, annotation, one, place + jax.tree_util.keystr(keys), scope, clashing),
                value,
                is_leaf=lambda one: is_array(one) or isinstance(one, eqx.Module),
            )
        return value
    return jax.ShapeDtypeStruct(new_shape(builder, annotation, value, place, scope), value.dtype)
