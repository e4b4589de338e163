"""Reading: from a hint to the data that stands for it (`annotations`).

jaxtyping's hints are read through their public attributes. Strings are evaluated in a `Scope`; one that names what does
not exist at run time becomes `Unresolved`, one that makes no sense is an `AnnotationError`.
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ForwardRef, Literal, TypeVar, Union, cast, get_args, get_origin

import jax
import jaxtyping
import numpy as np
import typing_extensions
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import (
    ANY_DTYPE,
    ANYTHING,
    NONE,
    Annotation,
    ArrayOf,
    AwaitableOf,
    BatchedOf,
    BoxOf,
    CallableOf,
    Dtypes,
    Instance,
    LiteralOf,
    MappingOf,
    OneOf,
    Opaque,
    RecordOf,
    SequenceOf,
    StreamOf,
    TreeOf,
    TupleOf,
    Unresolved,
    Variable,
)
from weft.typecheck.language.batched import Batching, Dims
from weft.typecheck.language.dims import Shape
from weft.typecheck.language.forms import form_of
from weft.typecheck.language.objects import is_box_class


@dataclass(frozen=True)
class Scope:
    """Where a hint is read: the names that its strings may use, and the class that `Self` stands for.

    `within` are the strings and `type` aliases that it stands in: an alias of itself (`Tree = dict[str, "Tree"]`, `type
    Tree = dict[str, Tree]`) ends there.
    """

    globals: Mapping[str, Any] = field(default_factory=dict)
    locals: Mapping[str, Any] = field(default_factory=dict)
    owner: type | None = None
    within: frozenset[Any] = frozenset()
    # What the parameters of the aliases that it stands in are: `Vec` for the `T` of `Pair[Vec]`.
    given: Mapping[Any, Any] = field(default_factory=dict)


def read(hint: Any, scope: Scope = Scope()) -> Annotation:
    """Reads a hint.

    Raises:
        AnnotationError: in one line, if the hint can be resolved but makes no sense.

    >>> from jaxtyping import Array, Float
    >>> str(read(Float[Array, "*batch n"] | None))
    'Float[Array, "*batch n"] | None'
    """
    if isinstance(hint, (str, ForwardRef)):
        return _read_string(hint if isinstance(hint, str) else hint.__forward_arg__, scope)
    if hint is None:
        return NONE
    if hint is Any or hint is object or hint is dataclasses.MISSING:
        return ANYTHING
    if isinstance(hint, type) and not get_args(hint):
        return _read_class(hint, scope)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _read_annotated(hint, scope)
    if origin in _WRAPPERS:
        return read(arguments[0], scope)
    if origin in (Union, types.UnionType):
        members = (read(argument, scope) for argument in arguments)
        flat = [one for member in members for one in (member.members if isinstance(member, OneOf) else (member,))]
        return OneOf(tuple(dict.fromkeys(flat)))
    if origin in (Literal, typing_extensions.Literal):
        return LiteralOf(arguments)
    if hint in (typing.Self, typing_extensions.Self):
        return _read_class(scope.owner, scope) if scope.owner is not None else ANYTHING
    if isinstance(origin, type) and not hasattr(hint, "__args__"):
        return read(origin, scope)  # `typing.List` without brackets is `list`; `tuple[()]` has arguments, none of them
    if isinstance(origin, type):
        return _read_generic(hint, origin, arguments, scope)
    return _read_named(hint, scope)


_WRAPPERS = (
    typing.Final,
    typing.ClassVar,
    typing.Required,
    typing.NotRequired,
    typing_extensions.Required,
    typing_extensions.NotRequired,
    typing_extensions.ReadOnly,
    dataclasses.InitVar,
)


def _read_string(text: str, scope: Scope) -> Annotation:
    if text in scope.within:
        return ANYTHING
    try:
        hint = eval(text, dict(scope.globals), scope.locals)
    except (NameError, AttributeError, ImportError) as error:
        hint = _by_its_whole_name(text)
        if hint is None:
            return Unresolved(text, str(error))
    except AnnotationError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise AnnotationError(f"cannot read the annotation {text!r}: {reason}") from None
    return read(hint, dataclasses.replace(scope, within=scope.within | {text}))


def _by_its_whole_name(text: str) -> Any:
    """The class of a dotted name that begins with a module that is imported, in whoever's annotations it stands.

    So beartype reads `"package.module.Class"`, which keeps two modules from importing each other.
    """
    parts = text.split(".")
    if not all(map(str.isidentifier, parts)):
        return None
    for count in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:count]))
        if found is not None:
            for name in parts[count:]:
                found = getattr(found, name, None)
            return found if isinstance(found, type) else None
    return None


def _read_class(cls: type, scope: Scope) -> Annotation:
    if issubclass(cls, jaxtyping.AbstractArray):
        if not hasattr(cls, "dim_str"):
            return ANYTHING
        return ArrayOf(_array_class(cls.array_type), _dtypes_of(cls), Shape.parse(cls.dim_str))
    if issubclass(cls, jaxtyping.PyTree):
        if not hasattr(cls, "leaftype"):
            return TreeOf(ANYTHING)
        return TreeOf(read(cls.leaftype, scope), tuple(cls.structure.split()) if cls.structure else ())
    if cls in (jax.Array, np.ndarray):
        return ArrayOf(cls, ANY_DTYPE, Shape.parse("..."))
    if cls in (object, types.EllipsisType):
        return ANYTHING
    return Instance(cls) if form_of(cls) is None else RecordOf(cls)


def _array_class(cls: Any) -> Any:
    # JAX names its class so that cloudpickle cannot import it, and pickles a copy: an annotation that came from another
    # process would accept no array.
    named = getattr(cls, "__module__", None), getattr(cls, "__qualname__", None)
    return jax.Array if named == (jax.Array.__module__, jax.Array.__qualname__) else cls


def _dtypes_of(cls: Any) -> Dtypes:
    anything: Any = jaxtyping.Shaped
    accepted = None if cls.dtypes is anything.dtypes else tuple(cls.dtypes)
    return Dtypes(cls.dtype.__name__, accepted)


def _read_annotated(hint: Any, scope: Scope) -> Annotation:
    inner = read(hint.__origin__, scope)
    for extra in hint.__metadata__:
        if isinstance(extra, Batching):
            inner = BatchedOf(inner, extra.axes)
        elif isinstance(extra, Dims):
            inner = _linked(inner, extra)
    return inner


def _linked(inner: Annotation, dims: Dims) -> Annotation:
    """Passes links on to the records inside containers: `Annotated[list[Linear], Dims("in=width")]`."""
    if isinstance(inner, RecordOf):
        return dataclasses.replace(inner, dims=dims)
    return inner.rebuilt(lambda part: _linked(part, dims))


def _read_generic(hint: Any, origin: type, arguments: tuple[Any, ...], scope: Scope) -> Annotation:
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is ...:
            return SequenceOf(tuple, read(arguments[0], scope))
        return _read_tuple(arguments, scope)
    if origin is np.ndarray:  # `NDArray[np.float64]`, whose dtype a transform may make another one
        return _read_class(origin, scope)
    if origin is abc.Callable:
        parameters, returns = arguments if len(arguments) == 2 else (..., Any)
        listed = tuple(read(one, scope) for one in parameters) if isinstance(parameters, list) else None
        return CallableOf(listed, read(returns, scope))
    if origin is type:
        return Opaque(hint)
    given = [read(argument, scope) for argument in arguments]
    if is_box_class(origin):  # before the others: a box can be iterated over
        return BoxOf(origin, given[0])
    for bases, build in _GENERICS:
        if issubclass(origin, bases):
            return build(origin, given)
    whole = _read_class(origin, scope)
    return dataclasses.replace(whole, given=tuple(given)) if isinstance(whole, Instance) else whole


def _read_tuple(arguments: tuple[Any, ...], scope: Scope) -> Annotation:
    """A tuple of a fixed length; where one of any length is unpacked in it, a tuple of items that are any of these."""
    items: list[Annotation] = []
    is_fixed = True
    for argument in arguments:
        unpacked = getattr(argument, "__unpacked__", False) or get_origin(argument) in _UNPACKS
        if not unpacked:
            items += [read(argument, scope)] if argument != () else []
            continue
        inner = get_args(argument)[0] if get_origin(argument) in _UNPACKS else argument.__origin__[argument.__args__]
        if inner in scope.given:
            items += scope.given[inner]
            continue
        whole = read(inner, scope) if get_origin(inner) is tuple else SequenceOf(tuple, ANYTHING)  # of a TypeVarTuple
        is_fixed &= isinstance(whole, TupleOf)
        items += whole.items if isinstance(whole, TupleOf) else (cast(SequenceOf, whole).item,)
    if is_fixed:
        return TupleOf(tuple(items))
    kinds: list[Any] = list(dict.fromkeys(items))
    return SequenceOf(tuple, ANYTHING if ANYTHING in kinds else OneOf(tuple(kinds)) if len(kinds) > 1 else kinds[0])


_UNPACKS = (typing.Unpack, typing_extensions.Unpack)


def _stream(origin: type, given: list[Annotation]) -> Annotation:
    padded = [*given, ANYTHING, ANYTHING, ANYTHING]
    sends = issubclass(origin, (abc.Generator, abc.AsyncGenerator))
    return StreamOf(origin, padded[0], padded[1] if sends else ANYTHING, padded[2] if sends else ANYTHING)


# The first row that a generic class falls under says what it is.
_GENERICS: tuple[tuple[tuple[type, ...], Callable[[type, list[Annotation]], Annotation]], ...] = (
    ((abc.Mapping,), lambda origin, given: MappingOf(origin, *(given if len(given) == 2 else (ANYTHING, ANYTHING)))),
    ((abc.Coroutine,), lambda origin, given: AwaitableOf(origin, given[-1])),
    ((abc.Awaitable,), lambda origin, given: AwaitableOf(origin, given[0])),
    ((abc.Iterator, abc.AsyncIterator), _stream),
    ((abc.Collection,), lambda origin, given: SequenceOf(origin, given[0])),
    ((abc.Iterable, abc.AsyncIterable), _stream),
)


def _read_alias(alias: Any, hint: Any, scope: Scope) -> Annotation:
    """What a `type` alias stands for, with what its parameters are where it is used."""
    if hint in scope.within:
        return ANYTHING
    try:
        value, parameters = alias.__value__, getattr(alias, "__type_params__", ())
    except (NameError, AttributeError, ImportError) as error:  # it is evaluated now, and may name what is not imported
        return Unresolved(str(hint), str(error))
    given, arguments = {**scope.given}, [read(one, scope) for one in get_args(hint)]
    for number, parameter in enumerate(parameters if arguments else ()):
        if isinstance(parameter, TypeVar):
            given[parameter] = arguments.pop(0) if arguments else ANYTHING
        else:  # a TypeVarTuple takes all that the parameters after it leave
            count = max(len(arguments) - (len(parameters) - number - 1), 0)
            given[parameter], arguments = tuple(arguments[:count]), arguments[count:]
    return read(value, dataclasses.replace(scope, within=scope.within | {hint}, given=given))


def _read_named(hint: Any, scope: Scope) -> Annotation:
    if isinstance(hint, TypeVar):
        if hint in scope.given:
            return scope.given[hint]
        if hint.__bound__ is not None:
            return read(hint.__bound__, scope)
        members = tuple(read(one, scope) for one in hint.__constraints__)
        return OneOf(members) if members else Variable(hint.__name__)
    if hasattr(hint, "__supertype__"):
        return read(hint.__supertype__, scope)
    if "__value__" in dir(get_origin(hint) or hint):  # to ask for it would evaluate it
        return _read_alias(get_origin(hint) or hint, hint, scope)
    if isinstance(hint, (typing.ParamSpec, typing.ParamSpecArgs, typing.ParamSpecKwargs)):
        return ANYTHING
    return Opaque(hint)
