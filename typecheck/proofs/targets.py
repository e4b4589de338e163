"""Targets: the functions and methods whose contracts are proved, for a function, a class of Modules, or an instance.

A decorated function is proved as it was written: `jit`, `vmap` and checkers are taken off as far as `__wrapped__` goes,
except for `vectorize`. The functions that it calls keep their decorators. A class is constructed from the annotations
of its `__init__`, and each public method with annotations is proved on the abstract instance. An inherited method is
proved for the arguments that the subclass is meant to be given. An instance is generalised (see `generalise`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from weft.core.records.leaves import is_array
from weft.core.records.properties import OPERATORS
from weft.typecheck.arguments.abstract import abstract_outside, is_plain_class, outside_values, with_outside
from weft.typecheck.arguments.builder import Assignment, Builder, Scope, Unwritten
from weft.typecheck.arguments.constructors import counts_of_class
from weft.typecheck.arguments.parameters import build_arguments, is_stub, numbers_compared, ranks_compared
from weft.typecheck.arguments.protocols import is_protocol
from weft.typecheck.arguments.records import build_module
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import (
    Annotation,
    Anything,
    ArrayOf,
    Instance,
    RecordOf,
    SequenceOf,
    TreeOf,
    holds_arrays,
)
from weft.typecheck.language.dims import FixedDim, NamedDim, VariadicDim
from weft.typecheck.language.forms import OBJECT, TYPEDDICT, form_of, has_own_dims, layer_of, opened, refuse_foreign
from weft.typecheck.language.signatures import (
    Parameter,
    Signature,
    name_groups,
    names_in,
    products_in,
    signature_of,
)
from weft.typecheck.matching.policies import PROOF
from weft.typecheck.matching.records import dims_of_instance
from weft.typecheck.proofs.frames import place_of
from weft.typecheck.proofs.guards import is_transformed
from weft.typecheck.proofs.tracing import Call, Target, only_built

Generaliser = Callable[[Any], Callable[[Builder], Any]]


def targets_of(thing: Any, supplied: Mapping[str, Any], generalise: Generaliser) -> list[Target]:
    """The targets of a thing, one for each contract.

    Args:
        thing: a function, a Module class, an instance, or a bound method.
        supplied: arguments to use as they are, by name.
        generalise: turns an instance into a function that builds abstract instances like it.

    Raises:
        AnnotationError: in one line, for an annotation that cannot be read.
        TypeError: if the thing is none of these.
    """
    refuse_foreign(thing)
    if isinstance(thing, type):
        return _of_class(thing, supplied)
    if inspect.ismethod(thing) and not isinstance(thing.__self__, type) and not has_own_dims(type(thing.__self__)):
        # A method of any other object is proved for this very object: no annotation says how to make another.
        first = inspect.unwrap(thing.__func__).__code__.co_varnames[:1]
        return [_of_function(thing.__func__, {**dict.fromkeys(first, thing.__self__), **supplied})]
    if has_own_dims(type(getattr(thing, "__self__", None))):  # equinox's bound methods are Modules themselves
        return _of_instance(thing.__self__, inspect.unwrap(thing.__func__).__name__, supplied, generalise)
    if has_own_dims(type(thing)) and not hasattr(thing, "__wrapped__"):
        return _of_instance(thing, None, supplied, generalise)
    if isinstance(thing, eqx.Partial | functools.partial):
        # The arguments of a `partial` are used as they are, as if they had been passed in `args`.
        inner = inspect.unwrap(thing.func)
        bound = inspect.signature(inner).bind_partial(*thing.args, **thing.keywords).arguments
        return [_of_function(inner, {**bound, **supplied})]
    if callable(thing):
        cls = _class_of(thing)
        return (
            [_of_function(thing, supplied)] if cls is None else _of_class(cls, supplied, inspect.unwrap(thing).__name__)
        )
    raise TypeError(f"verify takes a function, a Module class, an instance or a method, not {thing!r}")


def names_taken(thing: Any) -> frozenset[str] | None:
    """The names of the parameters that arguments can be given for; None if a function takes any keyword."""
    cls = thing if isinstance(thing, type) else _class_of(thing) if inspect.isfunction(thing) else type(thing)
    if cls is not None and (has_own_dims(cls) or is_made(cls)):
        functions = [cls, *public_methods(cls), *(function for function, _ in unbound_methods(cls))]
    else:
        functions = [inspect.unwrap(thing)]
    parameters = [parameter for function in functions for parameter in _parameters(function)]
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)


def _parameters(function: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    try:
        return inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of a class whose metaclass has none
        return [inspect.Parameter("any", inspect.Parameter.VAR_KEYWORD)]


def _of_function(function: Callable[..., Any], supplied: Mapping[str, Any]) -> Target:
    signature = signature_of(function)
    plain = signature.function
    # Annotations of a vectorized function may be those of its callers, `"*batch n"`, or of its body, `"n"`. It takes
    # both, so `vectorize` is not taken off, as `vmap` is.
    vectorized: Any = function
    while vectorized is not None and getattr(vectorized, "__code__", None) is not _VECTORIZED:
        vectorized = getattr(vectorized, "__wrapped__", None)
    called = plain if vectorized is None else vectorized
    has_no_body = is_stub(plain)

    def prepare(builder: Builder) -> Call:
        if has_no_body:
            raise Unwritten("it is not implemented")
        return called, *build_arguments(builder, signature, Scope(), supplied)

    def prepare_outside(builder: Builder) -> Call:
        args, kwargs = build_arguments(builder, signature, Scope(), supplied)
        return with_outside(plain), (abstract_outside(plain, builder), *args), kwargs

    constants = {*_constants(plain), *(size for value in supplied.values() for size in _sizes(value))}
    if any(
        parameter.kind is inspect.Parameter.VAR_POSITIONAL or isinstance(parameter.annotation, SequenceOf)
        for parameter in signature.parameters
    ):
        constants.add(2)  # the number of values that a trial passes to such a parameter
    target = _target(plain, plain.__qualname__, prepare, frozenset(constants), signature)
    target = dataclasses.replace(target, transformed=is_transformed(function))
    if vectorized is not None or not isinstance(plain, FunctionType):
        return target
    # A matrix of 8 by 8 in the module would tie two dims to one size, and hide that the function mixes them up. So
    # arrays from outside are abstract as well, unless the function needs their numbers.
    if not abstract_outside(plain, Builder(Assignment())):
        return target
    return dataclasses.replace(target, prepare=prepare_outside, instead=target)


# Every function that `jnp.vectorize` returns has this code object.
_VECTORIZED = jnp.vectorize(len).__code__


def _class_of(method: Any) -> type | None:
    """The class of records in whose body a function was written, found by the function's qualified name, else None."""
    plain = inspect.unwrap(method)
    owners = getattr(plain, "__qualname__", "").split(".")[:-1]
    scope: Any = None
    for i, owner in enumerate(owners):
        scope = getattr(plain, "__globals__", {}).get(owner) if i == 0 else getattr(scope, owner, None)
    if not isinstance(scope, type) or not is_made(scope):
        return None
    # Only if this very function is a public method there: the qualified name may lead to a later class of the same
    # name, as in a notebook whose cell ran twice.
    return scope if any(method is plain for method in public_methods(scope)) else None


def _has_fields(cls: type) -> bool:
    """Whether instances are made from annotated fields: of records, objects, dataclasses and named tuples."""
    return form_of(cls) not in (None, TYPEDDICT)


def is_made(cls: type) -> bool:
    """Whether instances of a class can be made: from its fields, or by its constructor."""
    return _has_fields(cls) or is_plain_class(cls)


def _of_class(cls: type, supplied: Mapping[str, Any], method: str | None = None) -> list[Target]:
    """The targets of the methods of a class, on instances made by it; without any, the target that only makes one."""
    if not is_made(cls):
        raise TypeError(f"{cls.__qualname__} has no annotated fields; verify its functions one by one")
    counts = dict.fromkeys(counts_of_class(cls), 2) if has_own_dims(cls) else {}

    def make(builder: Builder) -> Any:
        if not has_own_dims(cls):
            return builder.build(RecordOf(cls) if _has_fields(cls) else Instance(cls), "self", Scope("self.", "self."))
        return build_module(builder, cls, "self", Scope("self.", "self."), {**counts, **supplied})

    functions = [function for function in public_methods(cls) if method in (None, function.__name__)]
    methods = [_of_method(cls, function, make, supplied) for function in functions]
    if method is not None:
        return methods
    methods += _of_unbound_methods(cls, supplied)
    if methods:
        return methods
    return [_target(cls, cls.__qualname__, lambda builder: (only_built, (make(builder),), {}))]


def _of_instance(
    instance: Any, method: str | None, supplied: Mapping[str, Any], generalise: Generaliser
) -> list[Target]:
    """The targets of the methods of an instance, on abstract instances like it."""
    cls = type(instance)
    make = generalise(instance)
    functions = [function for function in public_methods(cls) if method in (None, function.__name__)]
    targets = [_of_method(cls, function, make, supplied, frozenset(_sizes(instance))) for function in functions]
    if method is None:
        targets += _of_unbound_methods(cls, supplied)
    return targets


def _of_method(
    cls: type,
    function: Callable[..., Any],
    make: Callable[[Builder], Any],
    supplied: Mapping[str, Any],
    constants: frozenset[int] = frozenset(),
) -> Target:
    """The target of a method, on instances that `make` makes."""
    name = f"{cls.__qualname__}.{function.__name__}"
    try:
        written = signature_of(function, cls)
    except AnnotationError as error:
        return _unreadable(function, name, error)
    parameters = tuple(as_narrowed(parameter, function.__name__, cls) for parameter in written.parameters[1:])
    signature = Signature(written.function, parameters, written.returns, written.flavour, cls)
    # A method of an object is proved as it was written, without the transforms around it, as functions are.
    called: Any = inspect.getattr_static(cls, function.__name__)
    plain = form_of(cls) is OBJECT or isinstance(called, property | functools.cached_property)
    attribute = written.function if plain else getattr(cls, function.__name__)

    def prepare(builder: Builder) -> Call:
        if getattr(function, "__isabstractmethod__", False) or is_protocol(cls) or is_stub(written.function):
            raise Unwritten(f"{function.__name__} is abstract: it is judged in the classes that implement it")
        record = make(builder)
        scope = Scope(values={"self": record})
        if _has_fields(cls):
            own = dims_of_instance(record, PROOF)
            scope.bound = dict(own.sizes)
            scope.variadics = {name: bound.shape for name, bound in own.variadics.items()}
            for size in own.sizes.values():
                builder.used(size, scope)
            builder.names |= own.sizes.keys()
            # Names that the class and the method share show that their authors mean the same dims; see `may_merge`.
            builder.names_outside |= own.sizes.keys() & signature.names
        # Many models have a property for their number of states; integers of fields bind dims elsewhere.
        for name in sorted(signature.names - scope.bound.keys()):
            if isinstance(inspect.getattr_static(type(record), name, None), property | functools.cached_property):
                with contextlib.suppress(Exception):  # whatever it computes
                    size = getattr(record, name)
                    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
                        scope.bound[name] = size
                        builder.used(size, scope)
        args, kwargs = build_arguments(builder, signature, scope, supplied)
        return attribute, (record, *args), kwargs

    constants |= frozenset(_constants(written.function))
    target = _target(written.function, name, prepare, constants, signature)
    # A method of a record is called with its transforms, and JAX then sees by itself that it is inside of one.
    transformed = form_of(cls) is OBJECT and is_transformed(called)
    # A method that another package's base class defines calls hooks in this class's file, whose guards are there.
    own = target.own | {place_of(cls)[0]}
    return dataclasses.replace(target, own=own, inherited=function.__name__ not in vars(cls), transformed=transformed)


def _of_unbound_methods(cls: type, supplied: Mapping[str, Any]) -> Iterator[Target]:
    for function, bound in unbound_methods(cls):
        try:
            yield _of_function(function, {**supplied, **bound})
        except AnnotationError as error:
            yield _unreadable(function, inspect.unwrap(function).__qualname__, error)


def _unreadable(function: Callable[..., Any], name: str, error: AnnotationError) -> Target:
    """The target of a function whose annotations cannot be read: it raises, and the rest of its class is proved."""

    def prepare(_: Builder) -> Call:
        raise error.with_traceback(None)

    return _target(inspect.unwrap(function), name, prepare)


_SEEN = {"__call__", *OPERATORS}


def public_methods(cls: type) -> Iterator[Callable[..., Any]]:
    """The public methods, operators and properties of a class with an array in their annotations, in order."""
    seen: set[str] = set()
    layer = layer_of(cls)
    own = () if layer is None else (layer.package,)
    for base in cls.__mro__:
        if base is eqx.Module or base.__module__.startswith(("equinox.", "weft.core.", *own)):
            break
        fields = vars(base).get("__annotations__", {})
        for name, value in vars(base).items():
            if isinstance(value, staticmethod | classmethod) or name in fields:
                continue  # `norm: Callable = layer_norm` is a field
            function = function_in(value)
            if name in seen or function is None:
                continue
            seen.add(name)
            if not hasattr(cls, function.__name__):
                continue  # a function from elsewhere, under a name of its own here
            if not is_private(name) and is_annotated(function, cls):
                yield function


def is_private(name: str) -> bool:
    """Whether a name is private: it begins with an underscore, and is no operator."""
    return name.startswith("_") and name not in _SEEN


def function_in(value: Any) -> FunctionType | None:
    """The function behind an attribute of a class: of a method, a property, a static or class method; else None."""
    if isinstance(value, property | functools.cached_property | staticmethod | classmethod):
        bound: Any = value
        value = getattr(bound, "fget", None) or getattr(bound, "func", None) or getattr(bound, "__func__", None)
    function = inspect.unwrap(value) if callable(value) else None
    return function if isinstance(function, FunctionType) else None


def unbound_methods(cls: type) -> Iterator[tuple[Callable[..., Any], dict[str, Any]]]:
    """The public static and class methods that a class defines itself, with the argument that passes the class."""
    for name, value in vars(cls).items():
        if name.startswith("_") or not isinstance(value, staticmethod | classmethod):
            continue
        function = function_in(value)
        if function is not None and is_annotated(function, cls):
            first = function.__code__.co_varnames[:1]
            yield value.__func__, dict.fromkeys(first, cls) if isinstance(value, classmethod) else {}


def is_annotated(function: Callable[..., Any], owner: type | None = None) -> bool:
    """Whether a function's annotations contain an array, or cannot be read, which its proof then reports."""
    try:
        signature = signature_of(function, owner)
    except AnnotationError:
        return True
    except (TypeError, ValueError):
        return False
    annotations: list[Annotation] = [signature.returns, *(parameter.annotation for parameter in signature.parameters)]
    # A parameter without an annotation may hold arrays as well; on its own it makes no contract.
    return any(not isinstance(annotation, Anything) and holds_arrays(annotation) for annotation in annotations)


def _target(
    owner: Any,
    name: str,
    prepare: Callable[[Builder], Call],
    constants: frozenset[int] = frozenset(),
    signature: Signature | None = None,
) -> Target:
    """A target with all that its function's source and annotations show."""
    file, line = place_of(owner)
    target = Target(name, file, line, prepare, frozenset({file}), constants)
    if signature is not None:
        target = with_names(target, signature)
    return dataclasses.replace(target, compared=numbers_compared(owner), compared_ranks=ranks_compared(owner))


def with_names(target: Target, signature: Signature) -> Target:
    """A target with the names and products of dims in the annotations of its function."""
    written = frozenset[str]().union(*(names_in(annotation, of_records=False) for annotation in signature.annotations))
    return dataclasses.replace(target, products=products_in(signature), written=written, shapes=name_groups(signature))


def _constants(function: Any) -> Iterator[int]:
    """The sizes outside of a function that it may require: of arrays in its closure or module, and integer defaults."""
    for value in outside_values(function).values():
        yield from _sizes(value)
    for parameter in inspect.signature(function).parameters.values():
        if type(parameter.default) is int:
            yield parameter.default


def _sizes(value: Any) -> Iterator[int]:
    """The integers in a value, and the sizes of its arrays."""
    if type(value) is int:
        yield value
    elif not callable(value) or has_own_dims(type(value)):
        try:
            leaves = jax.tree.leaves(opened(value))
        except ValueError:  # a dict whose keys have no order, such as rules with `...`, is no tree
            return
        for leaf in leaves:
            if is_array(leaf):
                yield from leaf.shape
            elif type(leaf) is int:
                yield leaf


def as_narrowed(parameter: Parameter, method: str, cls: type) -> Parameter:
    """A parameter of an inherited method, with the narrower annotation that the subclass's own methods give that name.

    A base class may call its hooks on kernels of any kind, and a subclass annotate the same hooks for graph kernels. Or
    a base class passes any tree, where a subclass takes one array. The subclass's annotations say what it is for.
    """
    if method in vars(cls):
        return parameter
    # Unwrapped, since `jit` makes an object that is no function of a method.
    own = (inspect.unwrap(member) for member in vars(cls).values() if callable(member))
    for function in filter(inspect.isfunction, own):
        if not any(function.__name__ in vars(base) for base in cls.__mro__[1:]):
            continue
        with contextlib.suppress(AnnotationError):  # reported where that method itself is judged
            for narrower in signature_of(function, cls).parameters:
                if narrower.name == parameter.name and _is_narrower(narrower.annotation, parameter.annotation):
                    return dataclasses.replace(parameter, annotation=narrower.annotation)
    return parameter


def _is_narrower(narrow: Annotation, wide: Annotation) -> bool:
    """Whether an annotation is narrower than another: a subclass, something instead of any tree, or fixed axes."""
    if _is_open(wide):
        return not _is_open(narrow)
    if isinstance(narrow, ArrayOf) and isinstance(wide, ArrayOf):
        # Alike but for axes where the narrow shape has a number and the wide one a name: `1`, `states`.
        dims, wide_dims = narrow.shape.dims, wide.shape.dims
        return (dims != wide_dims and len(dims) == len(wide_dims)) and all(
            dim == wider or (isinstance(dim, FixedDim) and isinstance(wider, NamedDim))
            for dim, wider in zip(dims, wide_dims, strict=True)
        )
    narrower, wider = (getattr(annotation, "cls", None) for annotation in (narrow, wide))
    # Not by `issubclass`, which a protocol may refuse to be asked.
    return isinstance(narrower, type) and isinstance(wider, type) and wider in narrower.__mro__[1:]


def _is_open(annotation: Annotation) -> bool:
    """Whether an annotation allows anything, any tree of anything, or any tree of arrays of any shape."""
    if not isinstance(annotation, TreeOf):
        return isinstance(annotation, Anything)
    leaf = annotation.leaf
    return isinstance(leaf, Anything) or (isinstance(leaf, ArrayOf) and leaf.shape.dims == (VariadicDim(None),))
