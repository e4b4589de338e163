"""Builds one argument from its annotation: one function for each class of annotation.

Arrays are `ShapeDtypeStruct`s, so nothing is computed. A Module is its class, called abstractly with arguments built
from the annotations of its constructor. The `Builder` chooses sizes and options. `values` builds plain values and
objects, `stand_ins` builds callables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from weft.typecheck.arguments.abstract import abstractly, closed, opened
from weft.typecheck.arguments.builder import (
    BUILDERS,
    ITEMS,
    Builder,
    ConstructorCall,
    Scope,
    Unbuildable,
    Unwritten,
    random_keys,
)
from weft.typecheck.arguments.constructors import signature_of_class
from weft.typecheck.arguments.parameters import keys_read
from weft.typecheck.arguments.records import build_module, instance_of, record_of
from weft.typecheck.arguments.subclasses import is_abstract
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import (
    ANY_DTYPE,
    NONE,
    Annotation,
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
    members_of,
)
from weft.typecheck.language.dims import ANY_SHAPE
from weft.typecheck.language.forms import form_of

# An annotation with an array class of these packages accepts a `jax.Array`.
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
    if isinstance(cls, type) and not issubclass(jax.Array, cls) and not _is_plain(cls):
        return _around_array(builder, spec, cls, place, scope)
    # A made-up array would have to hold numbers, and any verdict would then be about these numbers.
    if cls is np.ndarray:
        raise Unbuildable(f"{place}: NumPy computes with the numbers in an array, and a proof has only its shape")
    return _plain_array(builder, spec, place, scope)


def _is_plain(cls: type) -> bool:
    """Whether a class of JAX or NumPy is an array class; the experimental sparse matrices of JAX are not."""
    module = cls.__module__
    return module.partition(".")[0] in _PLAIN and not module.startswith("jax.experimental.")


def _around_array(builder: Builder, spec: ArrayOf, cls: type, place: str, scope: Scope) -> Any:
    """A record that wraps an array, such as a quantity with a unit: built from one array, with its shape and dtype."""
    if cls.__module__.partition(".")[0] == "torch":
        raise Unwritten("it is torch code: weft checks JAX code")
    form = form_of(cls)
    open_array = ArrayOf(jax.Array, ANY_DTYPE, ANY_SHAPE)
    parameters = [] if form is None or form.mutable or is_abstract(cls) else signature_of_class(cls).parameters
    names = [
        parameter.name
        for parameter in parameters
        if parameter.required
        and any(isinstance(member, Anything) or member == open_array for member in members_of(parameter.annotation))
    ]
    if len(names) == 1:
        array = _plain_array(builder, spec, place, scope)
        made = build_module(builder, cls, place, Scope(f"{place}.", f"{place}.", lead=scope.lead), {names[0]: array})
        # A wrapper that changes the shape would be an argument that contradicts its own annotation.
        if (getattr(made, "shape", None), getattr(made, "dtype", None)) == (array.shape, array.dtype):
            return made
    raise Unbuildable(f"{place}: no {cls.__name__} can be made from a shape and a dtype alone")


# Another dtype of each kind, and floats of 16 bits where floats alone are accepted.
_OTHERS, _HALF = ("int32", "complex64", "bool"), ("bfloat16",)


def _plain_array(builder: Builder, spec: ArrayOf, place: str, scope: Scope) -> Any:
    """An array of JAX, by its shape and its class of dtypes; what other dtypes the class has are options."""
    shape = builder.shape(spec.shape, place, scope)
    if any(type(size) is int and size < 0 for size in shape):
        raise Unbuildable(f"{place}: {spec} has a negative size at {dict(builder.sizes)}")
    if spec.dtype.accepted == ("prng_key",):
        return jax.ShapeDtypeStruct(shape, random_keys()[0].dtype)
    # All items of a list get the same dtype: what takes a list of floats may refuse a list of floats and ints.
    if spec.dtype.accepted is None and builder.choose(f"{_ITEM.sub('[:]', place)} dtype", 2) == 1:
        return jax.ShapeDtypeStruct(shape, jnp.result_type(int))
    named = (dtype for dtype in spec.dtype.accepted or () if isinstance(dtype, str))
    tried = (*_usual(builder, spec), *_DTYPES, *named)
    accepted = spec.dtype.accepted_of((*tried, *_OTHERS, *_HALF))
    usual = accepted[0] if accepted else ""
    if usual not in tried:
        raise Unbuildable(f"{place}: weft knows no dtype that {spec.dtype.name} accepts")
    if spec.dtype.accepted is None and spec.shape == ANY_SHAPE:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(usual))
    # All arrays of a family get the same dtype: JAX refuses many an operation of two.
    others = list[str]()
    if usual in ("float32", "float64"):
        others = [kind for kind in _OTHERS if kind in accepted] or [kind for kind in _HALF if kind in accepted]
    chosen = builder.one_of(f"{spec.dtype.name} arrays", (usual, *others), str)
    return jax.ShapeDtypeStruct(shape, jnp.dtype(chosen))


def _usual(builder: Builder, spec: ArrayOf) -> tuple[str, ...]:
    """The default dtypes of JAX where a package enables 64 bits: such a package may not be meant for 32 bits."""
    if jnp.result_type(float) != jnp.float64:
        return ()
    floats = "float64", "complex128"
    if spec.dtype.accepts("float32") or spec.dtype.accepts("complex64"):
        floats = (floats, ("float32", "complex64"))[builder.choose("floats width", 2)]
    return (floats[0], "int64", "bool", floats[1])


def _union(builder: Builder, spec: OneOf, place: str, scope: Scope) -> Any:
    """A value of one member of a union. Which array it is, and whether it is None, are options."""
    members = [member for member in spec.members if member != NONE]
    arrays = [array for array in members if isinstance(array, ArrayOf)]
    # NumPy's member of a union comes last: a proof has no numbers to put into a NumPy array.
    arrays = [array for array in arrays if array.array_type is not np.ndarray] or arrays
    # A union with a random key means a key: any other array would be refused by `jax.random`.
    if arrays and arrays[0].dtype.accepted == ("prng_key",):
        members = arrays[:1]
    elif arrays:
        # Two members with one shape make one trial: `float | Array`, or NumPy's and JAX's array, is no further case.
        members = list({str(array.shape): array for array in reversed(arrays)}.values())[::-1]
    else:
        members = [OneOf(tuple(member for member in members if not isinstance(member, LiteralOf)) or tuple(members))]
    if spec.optional and builder.choose(f"{place} present", 2) == 1:
        return None
    chosen = builder.one_of(f"{place} type", members, str)
    try:
        with builder.making_up(builder.makes_up and not spec.optional):  # None assumes less than a made-up string
            return _first(builder, _chosen_member(builder, chosen, place), place, scope)
    except Unbuildable:
        if not spec.optional:
            raise
        return None
    except AnnotationError as error:  # `{shape[2]}` of one member makes sense where `shape` has three items
        if len(members) == 1:
            raise
        raise Unbuildable(f"{place}: {error.what}") from None


def _chosen_member(builder: Builder, chosen: Annotation, place: str) -> OneOf:
    """The member of a union to build; among members without arrays, the first that can be built.

    The search picks another member only where the usual one fails: for `int | Config` varying them finds nothing.
    """
    if not isinstance(chosen, OneOf):
        return OneOf((chosen,))
    builder.values[f"{place} type"] = tuple(map(str, chosen.members))
    number = builder.assignment.options.get(f"{place} type", 0)
    return OneOf((chosen.members[number],)) if 0 < number < len(chosen.members) else chosen


def _first(builder: Builder, spec: OneOf, place: str, scope: Scope) -> Any:
    """A value of the first member of a union for which a value can be built."""
    refused: list[Unbuildable] = []
    # A made-up string comes last: for `str | np.dtype` a dtype is a real value, and the string may mean nothing.
    for makes_up in (False, True) if builder.makes_up and len(spec.members) > 1 else (builder.makes_up,):
        for member in spec.members:
            try:
                with builder.making_up(makes_up):
                    return builder.build(member, place, scope)
            except Unbuildable as reason:
                refused.append(reason)
    raise refused[0]


def _sequence(builder: Builder, spec: SequenceOf, place: str, scope: Scope) -> Any:
    if isinstance(spec.item, Anything) and issubclass(spec.cls, Set):  # a set of tags, for example: it may be empty
        return _nothing(builder, spec.cls(), place)
    length = ITEMS[builder.choose(f"{place} length", len(ITEMS))]
    scope = dataclasses.replace(scope, many=True)
    items = [builder.build(spec.item, f"{place}[{number}]", scope) for number in range(length)]
    return tuple(items) if issubclass(spec.cls, tuple) else _of_class(builder, spec.cls, items, place)


def _nothing(builder: Builder, empty: Any, place: str) -> Any:
    """An empty collection for one of unknown items; the proof says that it assumed the collection empty."""
    builder.emptied.add(place)
    return empty


def _of_class(builder: Builder, cls: type, plain: Any, place: str) -> Any:
    """The collection as an instance of the annotated class, as `FrozenDict` is made from a dict."""
    if isinstance(plain, cls):
        return plain
    with contextlib.suppress(Exception):
        # A class may raise anything for a list or dict; that says only that no instance is made this way.
        made = cls(plain)
        if isinstance(made, cls):
            builder.calls.append(ConstructorCall(made, cls, (plain,), {}))
            return made
    raise Unbuildable(f"{place}: no {cls.__name__} can be made from a {type(plain).__name__} alone")


def _mapping(builder: Builder, spec: MappingOf, place: str, scope: Scope) -> Any:
    """A mapping of the keys that the body reads, of those that a `Literal` lists, or of a few made-up ones."""
    builder.vague.add(place)
    if isinstance(spec.value, Anything) and not isinstance(spec.value, Variable):
        return _of_class(builder, spec.cls, _nothing(builder, {}, place), place)
    scope = dataclasses.replace(scope, many=True)
    # The keys that the body reads are what a caller passes; without them `batch["image"]` would raise KeyError.
    read = keys_read(scope.function, place.removeprefix(scope.path)) or dict.fromkeys(builder.texts.values())
    keys: tuple[Any, ...] = tuple(read)
    if isinstance(spec.key, LiteralOf):
        keys = spec.key.values
        builder.vague.discard(place)
    elif not keys:
        count = ITEMS[builder.choose(f"{place} length", len(ITEMS))]
        keys = tuple(range(count)) if spec.key == Instance(int) else ("a", "b", "c")[:count]
    plain = {key: builder.build(spec.value, f"{place}[{key!r}]", scope) for key in keys}
    return _of_class(builder, spec.cls, plain, place)


def _tree(builder: Builder, spec: TreeOf, place: str, scope: Scope) -> Any:
    """A dict of two leaves; trees of one structure name have leaves of the same shapes.

    For `"S T"`, each leaf of the tree S is a tree T.
    """
    builder.vague.add(place)
    named = [name for name in spec.structure if name != "..."]
    # A single array is a pytree, too: a function that indexes the dict would be wrong for it.
    if builder.choose(f"{named[0] if named else place} tree", 2) == 1:
        leaf = ArrayOf(jax.Array, ANY_DTYPE, ANY_SHAPE) if isinstance(spec.leaf, Anything) else spec.leaf
        return builder.build(leaf, place, scope)
    return _levels(builder, spec, place, dataclasses.replace(scope, many=True), "tree", named or [""])


def _variable(builder: Builder, spec: Variable, place: str, scope: Scope) -> Any:
    """A tree for a type variable, the same tree at each of its uses."""
    return _tree(builder, TreeOf(Anything(), (spec.name,)), place, scope)


def _levels(builder: Builder, spec: TreeOf, place: str, scope: Scope, root: str, names: list[str]) -> Any:
    root = f"{root}.{names[0]}" if names[0] else root
    if len(names) > 1:
        return {key: _levels(builder, spec, f"{place}.{key}", scope, f"{root}.{key}", names[1:]) for key in ("b", "w")}
    leaf = spec.leaf
    tree = {}
    outer = scope.leaf
    if isinstance(leaf, Anything):
        leaf = ArrayOf(jax.Array, ANY_DTYPE, ANY_SHAPE)
    for number, key in enumerate(("b", "w")):
        scope.leaf = f"{root}.{number}."
        if isinstance(leaf, ArrayOf) and leaf.shape == ANY_SHAPE:
            # One leaf has one axis and the other has two, as a bias and a matrix: a function of any tree must take both
            # ranks.
            shape = tuple(builder.size(f"{root}.w.{axis}", scope) for axis in range(2))[1 - number :]
            tree[key] = jax.ShapeDtypeStruct(scope.lead + shape, _array(builder, leaf, f"{root}.{key}", scope).dtype)
        else:
            tree[key] = builder.build(leaf, f"{place}.{key}", scope)
    scope.leaf = outer
    # `PyTree[dict[...]]` says that a dict is a leaf, so the tree around the dicts is a tuple.
    return tuple(tree.values()) if any(isinstance(member, MappingOf) for member in members_of(leaf)) else tree


def _box(builder: Builder, spec: BoxOf, place: str, scope: Scope) -> Any:
    value = builder.build(spec.inner, place, scope)
    return abstractly(spec.cls, value)


def _literal(builder: Builder, spec: LiteralOf, place: str, scope: Scope) -> Any:
    return builder.one_of(place, spec.values)


def _batched(builder: Builder, spec: BatchedOf, place: str, scope: Scope) -> Any:
    lead = builder.shape(spec.axes, place, scope)
    # The value is built without leading axes: `stacked` puts those of `Batched`, and those around it, in front.
    value = builder.build(spec.inner, place, dataclasses.replace(scope, lead=()))

    def stacked(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(lead + leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

    return closed(jax.tree.map(stacked, opened(value)))


BUILDERS.update(
    {
        ArrayOf: _array,
        OneOf: _union,
        TupleOf: lambda builder, spec, place, scope: tuple(
            builder.build(item, f"{place}[{number}]", scope) for number, item in enumerate(spec.items)
        ),
        SequenceOf: _sequence,
        MappingOf: _mapping,
        TreeOf: _tree,
        Variable: _variable,
        RecordOf: record_of,
        BatchedOf: _batched,
        BoxOf: _box,
        LiteralOf: _literal,
        Instance: instance_of,
    }
)
