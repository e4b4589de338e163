"""Arguments from annotations alone: what a proof hands to the function that it is about.

Arrays are `ShapeDtypeStruct`s: nothing is computed. A Module is its class, called abstractly with arguments built from
its own annotations. Sizes and options are the `Builder`'s to give; this file has a row for each class of annotation,
but for the classes of plain values and of objects (`values`) and for callables (`stand_ins`).
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from weft.typecheck.arguments.abstract import abstractly, closed, is_plain_class, opened
from weft.typecheck.arguments.builder import BUILDERS, ITEMS, Builder, Scope, Unbuildable, key_dtype
from weft.typecheck.arguments.constructors import counts_of_class, signature_of_class
from weft.typecheck.arguments.protocols import is_protocol, protocol_object
from weft.typecheck.arguments.stand_ins import any_callable
from weft.typecheck.arguments.subclasses import concrete_subclasses, is_abstract
from weft.typecheck.arguments.uses import keys_read, strings_compared
from weft.typecheck.arguments.values import BY_NAME, holds_objects, integer, is_last, is_made_of_its_own, value_of
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import (
    ANY_DTYPE,
    NONE,
    Anything,
    ArrayOf,
    BatchedOf,
    BoxOf,
    Instance,
    LiteralOf,
    MappingOf,
    OneOf,
    RecordOf,
    SequenceOf,
    TreeOf,
    TupleOf,
    Variable,
    holds_arrays,
    members_of,
)
from weft.typecheck.language.dims import Shape, SymbolicDim
from weft.typecheck.language.forms import OBJECT, form_of, has_own_dims
from weft.typecheck.language.key_names import with_keys
from weft.typecheck.language.names import names_in, names_of_class, names_of_fields, names_of_signature, shapes_in
from weft.typecheck.language.objects import is_library
from weft.typecheck.language.signatures import Parameter, Signature, fields_of

# The packages of whose arrays JAX's stand for.
_PLAIN = ("jax", "jaxlib", "numpy", "jaxtyping")

_DTYPES = (
    "float32",
    "int32",
    "bool",
    "complex64",
    "uint32",
    "uint8",
    "int8",
    "float16",
    "bfloat16",
    "float64",
    "int64",
)


_ITEM = re.compile(r"\[\d+\]")


def _array(builder: Builder, spec: ArrayOf, place: str, scope: Scope) -> Any:
    cls = spec.array_type
    if isinstance(cls, type) and not issubclass(jax.Array, cls) and cls.__module__.partition(".")[0] not in _PLAIN:
        return _around_array(builder, spec, cls, place, scope)
    if cls is np.ndarray:
        raise Unbuildable(f"{place}: NumPy computes with the numbers in an array, and a proof has only its shape")
    return _plain_array(builder, spec, place, scope)


def _around_array(builder: Builder, spec: ArrayOf, cls: type, place: str, scope: Scope) -> Any:
    """A record that stands for an array, as a quantity with a unit does: it takes one, and has its shape and dtype."""
    form = form_of(cls)
    open_array = ArrayOf(jax.Array, ANY_DTYPE, Shape.parse("..."))
    taken = [] if form is None or form.mutable or is_abstract(cls) else signature_of_class(cls).parameters
    names = [
        one.name
        for one in taken
        if one.required
        and any(isinstance(member, Anything) or member == open_array for member in members_of(one.annotation))
    ]
    if len(names) == 1:
        array = _plain_array(builder, spec, place, scope)
        made = build_module(builder, cls, place, Scope(f"{place}.", f"{place}.", lead=scope.lead), {names[0]: array})
        if (getattr(made, "shape", None), getattr(made, "dtype", None)) == (array.shape, array.dtype):
            return made
    raise Unbuildable(f"{place}: no {cls.__name__} can be made from a shape and a dtype alone")


def _plain_array(builder: Builder, spec: ArrayOf, place: str, scope: Scope) -> Any:
    shape = builder.shape(spec.shape, place, scope)
    if any(isinstance(size, int) and size < 0 for size in shape):
        raise Unbuildable(f"{place}: {spec} has a negative size at {dict(builder.sizes)}")
    if spec.dtype.accepted == ("prng_key",):
        return jax.ShapeDtypeStruct(shape, key_dtype())
    # Items of one list have one kind of numbers: what takes them all fails as long as one is of another.
    if spec.dtype.accepted is None and builder.choose(f"{_ITEM.sub('[:]', place)} dtype", 2) == 1:
        return jax.ShapeDtypeStruct(shape, jnp.result_type(int))
    for name in (*_usual(builder, spec), *_DTYPES, *(one for one in spec.dtype.accepted or () if isinstance(one, str))):
        if spec.dtype.accepts(name):
            return jax.ShapeDtypeStruct(shape, jnp.dtype(name))
    raise Unbuildable(f"{place}: no dtype is known to be a {spec.dtype.name}")


def _usual(builder: Builder, spec: ArrayOf) -> tuple[str, ...]:
    """The dtypes that JAX gives by itself, where a package has it give 64 bits: it may not be meant for fewer."""
    if not jax.config.jax_enable_x64:
        return ()
    floats = "float64", "complex128"
    if spec.dtype.accepts("float32") or spec.dtype.accepts("complex64"):
        floats = (floats, ("float32", "complex64"))[builder.choose("floats width", 2)]
    return (floats[0], "int64", "bool", floats[1])


def _one_of(builder: Builder, spec: OneOf, place: str, scope: Scope) -> Any:
    members = [member for member in spec.members if member != NONE]
    arrays = [one for one in members if isinstance(one, ArrayOf)]
    arrays = [one for one in arrays if one.array_type is not np.ndarray] or arrays
    if arrays and arrays[0].dtype.accepted == ("prng_key",):
        members = arrays[:1]
    elif arrays:
        # A number where an array may stand, or the same shape as NumPy's, is not another case.
        members = list({str(one.shape): one for one in reversed(arrays)}.values())[::-1]
    else:
        members = [OneOf(tuple(one for one in members if not isinstance(one, LiteralOf)) or tuple(members))]
    if spec.optional and builder.choose(f"{place} present", 2) == 1:
        return None
    chosen = builder.one_of(f"{place} type", members, str)
    try:
        return _first(builder, chosen if isinstance(chosen, OneOf) else OneOf((chosen,)), place, scope)
    except Unbuildable:
        if not spec.optional:
            raise
        return None
    except AnnotationError as error:  # `{shape[2]}` of one member makes sense where `shape` has three items
        if len(members) == 1:
            raise
        raise Unbuildable(f"{place}: {error.what}") from None


def _first(builder: Builder, spec: OneOf, place: str, scope: Scope) -> Any:
    """A value of the first member that one can be made of."""
    refused: list[Unbuildable] = []
    for member in spec.members:
        try:
            return builder.build(member, place, scope)
        except Unbuildable as reason:
            refused.append(reason)
    raise refused[0]


def _sequence(builder: Builder, spec: SequenceOf, place: str, scope: Scope) -> Any:
    if isinstance(spec.item, Anything) and issubclass(spec.cls, Set):  # of tags, say: there need be none
        return _nothing(builder, spec.cls(), place)
    length = ITEMS[builder.choose(f"{place} length", len(ITEMS))]
    scope = dataclasses.replace(scope, many=True)
    items = [builder.build(spec.item, f"{place}[{number}]", scope) for number in range(length)]
    return tuple(items) if issubclass(spec.cls, tuple) else items


def _nothing(builder: Builder, empty: Any, place: str) -> Any:
    """A collection of anything, such as further options: it may hold nothing, which is said."""
    builder.emptied.add(place)
    return empty


def _mapping(builder: Builder, spec: MappingOf, place: str, scope: Scope) -> Any:
    builder.vague.add(place)
    if isinstance(spec.value, Anything) and not isinstance(spec.value, Variable):
        return _nothing(builder, {}, place)
    scope = dataclasses.replace(scope, many=True)
    # What has names is given to a method by these.
    read = keys_read(scope.function, place.removeprefix(scope.path)) or dict.fromkeys(builder.texts.values())
    keys: tuple[Any, ...] = tuple(read) or ("a", "b")
    if isinstance(spec.key, LiteralOf):
        keys = spec.key.values
        builder.vague.discard(place)
    elif spec.key == Instance(int):
        keys = (0, 1)
    return {key: builder.build(spec.value, f"{place}[{key!r}]", scope) for key in keys}


def _tree(builder: Builder, spec: TreeOf, place: str, scope: Scope) -> Any:
    """A dict of two leaves; trees of one structure, or of none that is named, have leaves of the same shapes.

    Of several structures, `"S T"`, each leaf of the first is a tree of the second.
    """
    builder.vague.add(place)
    named = [name for name in spec.structure if name != "..."]
    if builder.choose(f"{named[0] if named else place} tree", 2) == 1:
        leaf = ArrayOf(jax.Array, ANY_DTYPE, Shape.parse("...")) if isinstance(spec.leaf, Anything) else spec.leaf
        return builder.build(leaf, place, scope)
    return _levels(builder, spec, place, dataclasses.replace(scope, many=True), "tree", named or [""])


def _variable(builder: Builder, spec: Variable, place: str, scope: Scope) -> Any:
    """A tree for what a type variable stands for, the same for each of its uses."""
    return _tree(builder, TreeOf(Anything(), (spec.name,)), place, scope)


def _levels(builder: Builder, spec: TreeOf, place: str, scope: Scope, root: str, names: list[str]) -> Any:
    root = f"{root}.{names[0]}" if names[0] else root
    if len(names) > 1:
        return {key: _levels(builder, spec, f"{place}.{key}", scope, f"{root}.{key}", names[1:]) for key in ("b", "w")}
    leaf, tree, outer = spec.leaf, {}, scope.leaf
    if isinstance(leaf, Anything):
        leaf = ArrayOf(jax.Array, ANY_DTYPE, Shape.parse("..."))
    for number, key in enumerate(("b", "w")):
        scope.leaf = f"{root}.{number}."
        if isinstance(leaf, ArrayOf) and leaf.shape == Shape.parse("..."):
            shape = tuple(builder.size(f"{root}.w.{axis}", scope) for axis in range(2))[1 - number :]
            tree[key] = jax.ShapeDtypeStruct(scope.lead + shape, _array(builder, leaf, f"{root}.{key}", scope).dtype)
        else:
            tree[key] = builder.build(leaf, f"{place}.{key}", scope)
    scope.leaf = outer
    # A dict around dicts would be taken for a leaf itself.
    return tuple(tree.values()) if any(isinstance(one, MappingOf) for one in members_of(leaf)) else tree


def _box(builder: Builder, spec: BoxOf, place: str, scope: Scope) -> Any:
    value = builder.build(spec.inner, place, scope)
    return abstractly(spec.cls, value)


def _literal(builder: Builder, spec: LiteralOf, place: str, scope: Scope) -> Any:
    return builder.one_of(place, spec.values)


def _batched(builder: Builder, spec: BatchedOf, place: str, scope: Scope) -> Any:
    lead = builder.shape(spec.axes, place, scope)
    value = builder.build(spec.inner, place, dataclasses.replace(scope, lead=()))

    def stacked(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(lead + leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

    return closed(jax.tree.map(stacked, opened(value)))


def _record(builder: Builder, spec: RecordOf, place: str, scope: Scope) -> Any:
    shares = spec.form.plain and not builder.assignment.apart and not scope.many
    inner = Scope(f"{place}.", scope.contract if shares else f"{place}.", lead=scope.lead, loose=is_library(spec.cls))
    for child, dim in spec.dims.links if spec.dims else ():
        (inner.bound[child],) = builder.dim(dim, f"{place} {child}", scope)
    if spec.form.mutable and not is_library(spec.cls):
        builder.vocabulary[inner.contract] = names_of_class(spec.cls)
    if not spec.form.plain:
        return build_module(builder, spec.cls, place, inner, dict.fromkeys(counts_of_class(spec.cls), 2))
    if is_abstract(spec.cls):
        return _of_subclass(builder, spec.cls, place, inner, None)
    fields = [one for one in fields_of(spec.cls) if one.required or not isinstance(one.annotation, Instance)]
    values = {
        one.name: builder.build(one.annotation, f"{inner.path}{one.name}", inner)
        for one in fields
        if one.required or builder.choose(f"{inner.path}{one.name} given", 2) == 0
    }
    return spec.cls(**values)


def _instance(builder: Builder, spec: Instance, place: str, scope: Scope) -> Any:
    if spec.cls is str:
        return _string(builder, place, scope)
    if spec.cls is Callable:
        return any_callable(builder, place, scope)
    if is_protocol(spec.cls) and is_plain_class(spec.cls):
        return protocol_object(builder, spec.cls, place, scope)
    if is_made_of_its_own(spec.cls) or not is_plain_class(spec.cls):
        return value_of(builder, spec, place, scope)
    # A constructor that takes its own kind (a tree of nodes, say) would be called for ever.
    if spec.cls in builder.inside:
        raise Unbuildable(f"{place}: a {spec.cls.__name__} takes another one")
    builder.inside = (*builder.inside, spec.cls)
    if _is_filled_later(spec.cls):
        builder.vague.add(place)
    try:
        return build_module(builder, spec.cls, place, Scope(f"{place}.", f"{place}.", lead=scope.lead))
    finally:
        builder.inside = builder.inside[:-1]


def _is_filled_later(cls: type) -> bool:
    """Whether a class is a namespace or a configuration: it can be made empty, and what is in it its user knows."""
    parameters = signature_of_class(cls).parameters
    names_anything = hasattr(cls, "__getattr__") or any(one.kind is one.kind.VAR_KEYWORD for one in parameters)
    return not any(one.required for one in parameters) and (names_anything or issubclass(cls, Mapping))


def _string(builder: Builder, place: str, scope: Scope, *default: str | None) -> Any:
    """One of the strings that the function asks for; a name that means nothing, if it asks for none."""
    name = place.removeprefix(scope.path)
    known = tuple(dict.fromkeys((*default, *strings_compared(scope.function, name))))
    if not known:
        builder.texts[place] = re.sub(r"\W+", "_", name).strip("_")
        return builder.texts[place]
    return builder.one_of(place, known)


def build_module(builder: Builder, cls: type, place: str, scope: Scope, given: Mapping[str, Any] | None = None) -> Any:
    """An abstract instance of a class of records or objects: it is called with what its own annotations say.

    Raises:
        Unbuildable: if the class is abstract and has no other, or its arguments cannot be built.
    """
    if is_abstract(cls):
        return _of_subclass(builder, cls, place, scope, given)
    signature = signature_of_class(cls)
    if is_library(cls) and not any(one.required for one in signature.parameters):
        raise Unbuildable(f"{place}: {cls.__name__} alone does not say what is in it")
    try:
        args, kwargs = build_arguments(builder, signature, scope, given)
    except Unbuildable:
        if given or not _is_told_by_fields(cls):
            raise
        return _of_fields(builder, cls, scope)
    made = _constructed(builder, cls, args, kwargs)
    builder.calls.append((made, cls, args, kwargs))
    return made


def _of_subclass(builder: Builder, cls: type, place: str, scope: Scope, given: Mapping[str, Any] | None) -> Any:
    """An instance of the subclass that the assignment takes; where it takes none, of the first that can be made."""
    # A sum of operators is an operator: what holds others of its own kind would go on for ever.
    classes = [] if cls in builder.standing_in else concrete_subclasses(cls)
    if not classes:
        raise Unbuildable(f"{place}: {cls.__qualname__} is abstract")
    option = f"{place} class"
    builder.classes[option] = tuple(one.__name__ for one in classes)
    chosen = builder.choose(option, len(classes))
    refused: list[str] = []
    for number in range(chosen, len(classes)) if option not in builder.assignment.options else (chosen,):
        one, state = classes[number], builder.state()
        builder.standing_in = (*builder.standing_in, cls)
        inner = dataclasses.replace(
            scope, bound=dict(scope.bound), variadics=dict(scope.variadics), values=dict(scope.values)
        )
        try:
            made = build_module(
                builder, one, place, inner, {**dict.fromkeys(counts_of_class(one), 2), **(given or {})} or None
            )
        except Unbuildable as reason:
            builder.restore(state)
            refused.append(str(reason))
            continue
        finally:
            builder.standing_in = builder.standing_in[:-1]
        builder.taken[option] = number
        return made
    raise Unbuildable(f"{place}: {cls.__qualname__} is abstract; for {classes[chosen].__name__}, {refused[0]}")


def _constructed(builder: Builder, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a class abstractly; for arguments that an earlier trial gave, what it made then, as new objects."""
    leaves, treedef = jax.tree.flatten(opened((args, kwargs)))
    abstract = jax.ShapeDtypeStruct
    key = cls, treedef, tuple((one.shape, one.dtype) if isinstance(one, abstract) else one for one in leaves)
    try:
        known = builder.known.get(key)
    except TypeError:  # something that cannot be hashed
        return abstractly(lambda given: cls(*given[0], **given[1]), (args, kwargs))
    if known is None:
        made = abstractly(lambda given: cls(*given[0], **given[1]), (args, kwargs))
        known = builder.made[key] = jax.tree.flatten(opened(made))
    leaves, treedef = known
    return closed(treedef.unflatten(leaves))


def _is_told_by_fields(cls: type) -> bool:
    """Whether the fields of a record or object say what is in it, if its `__init__` does not say what it takes."""
    fields = fields_of(cls) if has_own_dims(cls) else ()
    return bool(fields) and all(holds_arrays(one.annotation) or not one.required for one in fields)


def _of_fields(builder: Builder, cls: type, scope: Scope) -> Any:
    given = {
        one.name: builder.build(one.annotation, scope.path + one.name, scope) for one in fields_of(cls) if one.required
    }
    form = form_of(cls)
    assert form is not None
    return form.make(cls, given)


def build_arguments(
    builder: Builder, signature: Signature, scope: Scope, given: Mapping[str, Any] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments for a signature, in order; `given` ones are taken as they are.

    Raises:
        Unbuildable: naming the first argument that its annotation does not determine.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    scope.function = signature.function
    for parameter in signature.parameters:
        if not parameter.required and parameter.default is not inspect.Parameter.empty:
            scope.values.setdefault(parameter.name, parameter.default)
    dims = names_of_signature(signature) | (_dims_of_owner(signature) if scope.path else frozenset())
    built: dict[str, list[Any]] = {}
    read = _read_by_holes(signature)
    for parameter in sorted(with_keys(signature.parameters), key=lambda one: _turn(one, read)):
        built[parameter.name] = _values(builder, parameter, scope, dims, given or {})
        for value in built[parameter.name]:
            scope.values[parameter.name] = value
    for parameter in signature.parameters:
        for value in built[parameter.name]:
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                kwargs.update(value)
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                kwargs[parameter.name] = value
            else:
                args.append(value)
    return tuple(args), kwargs


def _dims_of_owner(signature: Signature) -> frozenset[str]:
    if signature.owner is None:
        return frozenset()
    form = form_of(signature.owner)
    if form is None:
        return frozenset()
    return names_of_class(signature.owner) if form is OBJECT else names_of_fields(signature.owner)


def _values(
    builder: Builder, parameter: Parameter, scope: Scope, dims: frozenset[str], given: Mapping[str, Any]
) -> list[Any]:
    name, place, annotation = parameter.name, scope.path + parameter.name, parameter.annotation
    if name in given:
        return [given[name]]
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        builder.vague.add(f"**{place}")
        return []
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        if isinstance(annotation, Anything):
            return []
        return [builder.build(annotation, f"{place}[{number}]", scope) for number in range(2)]
    if parameter.required:
        return [_required(builder, parameter, place, scope)]
    return [_defaulted(builder, parameter, place, scope, dims)]


def _required(builder: Builder, parameter: Parameter, place: str, scope: Scope) -> Any:
    if isinstance(parameter.annotation, Anything) and not isinstance(parameter.annotation, Variable):
        if parameter.name in BY_NAME:
            return BY_NAME[parameter.name](builder, place, scope)
        raise Unbuildable(f"{place}: it has no annotation and no default")
    return builder.build(parameter.annotation, place, scope)


def _defaulted(builder: Builder, parameter: Parameter, place: str, scope: Scope, dims: frozenset[str]) -> Any:
    """What is given for a parameter with a default: arrays both ways, flags both ways, sizes as sizes."""
    default, annotation = parameter.default, parameter.annotation
    if isinstance(default, bool):
        return builder.one_of(place, (default, not default))
    if isinstance(default, int) and parameter.name in dims:
        return integer(builder, parameter.name, scope)
    if isinstance(annotation, LiteralOf):
        others = tuple(one for one in annotation.values if one != default)
        return builder.one_of(place, (default, *others))
    if Instance(str) in members_of(annotation) and (default is None or isinstance(default, str)):
        return _string(builder, place, scope, default)
    if not holds_arrays(annotation) and not holds_objects(annotation):
        return default
    if default is None and isinstance(annotation, OneOf):
        annotation = OneOf(tuple(one for one in annotation.members if one != NONE))
    builder.optional[f"{place} given"] = names_in(annotation)
    if builder.choose(f"{place} given", 2) == 1:
        return default
    try:
        return builder.build(annotation, place, scope)
    except Unbuildable:
        return default


def _read_by_holes(signature: Signature) -> frozenset[str]:
    """The parameters that expressions in the annotations of others read: `Float[Array, "{shape[0]} d"]`."""
    shapes = [shape for one in signature.parameters for shape in shapes_in(one.annotation)]
    found = (dim.arguments for shape in shapes for dim in shape.dims if isinstance(dim, SymbolicDim))
    return frozenset().union(*found)


def _turn(parameter: Parameter, read: frozenset[str]) -> int:
    """When an argument is made: first the flags, and what the holes of expressions read; last what is for others."""
    if isinstance(parameter.default, bool) or parameter.name in read:
        return 0
    return 2 if is_last(parameter.annotation) else 1


BUILDERS.update(
    {
        ArrayOf: _array,
        OneOf: _one_of,
        TupleOf: lambda builder, spec, place, scope: tuple(
            builder.build(item, f"{place}[{number}]", scope) for number, item in enumerate(spec.items)
        ),
        SequenceOf: _sequence,
        MappingOf: _mapping,
        TreeOf: _tree,
        Variable: _variable,
        RecordOf: _record,
        BatchedOf: _batched,
        BoxOf: _box,
        LiteralOf: _literal,
        Instance: _instance,
    }
)
