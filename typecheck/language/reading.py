"""Reading: turns a type hint into the data of `annotations`.

jaxtyping's hints are read through their public attributes. Strings are evaluated in a `Scope`; a string with names that
do not exist at run time becomes `Unresolved`, and a string that makes no sense is an `AnnotationError`.
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
    members_of,
)
from weft.typecheck.language.dims import ANY_SHAPE, Batching, Dims, Shape
from weft.typecheck.language.forms import form_of, is_box_class


@dataclass(frozen=True)
class Scope:
    """The names and classes by which a hint is read.

    Attributes:
        globals, locals: the names that string annotations may use.
        owner: the class that `Self` stands for.
        within: the strings and `type` aliases around the hint. A recursive alias, such as `Tree = dict[str, "Tree"]` or
            `type Tree = dict[str, Tree]`, ends where it occurs again.
        type_arguments: the annotations that an alias's type parameters stand for: `Vec` for the `T` of `Pair[Vec]`.
    """

    globals: Mapping[str, Any] = field(default_factory=dict)
    locals: Mapping[str, Any] = field(default_factory=dict)
    owner: type | None = None
    within: frozenset[Any] = frozenset()
    type_arguments: Mapping[Any, Any] = field(default_factory=dict)


def read(hint: Any, scope: Scope = Scope()) -> Annotation:
    """Turns a type hint into the data that checks and proofs work on.

    Raises:
        AnnotationError: in one line, if the hint can be resolved but has no meaning.

    >>> from jaxtyping import Array, Float
    >>> str(read(Float[Array, "*batch n"] | None))
    'Float[Array, "*batch n"] | None'
    """
    if isinstance(hint, (str, ForwardRef)):
        return _read_string(hint if isinstance(hint, str) else hint.__forward_arg__, scope)
    if hint is None:
        # `None` as a hint means the type of None, as in `typing`.
        return NONE
    if hint is Any or hint is object or hint is dataclasses.MISSING:
        return ANYTHING
    if isinstance(hint, type) and not get_args(hint):
        return _read_class(hint, scope)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _read_annotated(hint, scope)
    # `Final`, `ClassVar`, `Required` and their like say nothing of the value's type.
    if origin in _WRAPPERS:
        return read(arguments[0], scope)
    if origin in (Union, types.UnionType):
        members = (read(argument, scope) for argument in arguments)
        # A nested union is flattened, so that a check tries each member once and an error lists them in one line.
        return OneOf(tuple(dict.fromkeys(part for member in members for part in members_of(member))))
    if origin in (Literal, typing_extensions.Literal):
        return LiteralOf(arguments)
    if hint in (typing.Self, typing_extensions.Self):
        return _read_class(scope.owner, scope) if scope.owner is not None else ANYTHING
    if isinstance(origin, type) and not hasattr(hint, "__args__"):
        return read(origin, scope)  # bare `typing.List` is `list`; `tuple[()]` has arguments, but zero of them
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
    """The annotation that a string stands for; `Unresolved` if the string names what does not exist at run time."""
    # A recursive alias, such as `Tree = dict[str, "Tree"]`, ends here.
    if text in scope.within:
        return ANYTHING
    try:
        # `typing.get_type_hints` evaluates all hints together, so one unknown name would hide the others.
        hint = eval(text, dict(scope.globals), scope.locals)
    except (NameError, AttributeError, ImportError) as error:
        hint = _class_by_dotted_name(text)
        if hint is None:
            return Unresolved(text, str(error))
    # An error about a shape inside the string names the dim already.
    except AnnotationError:
        raise
    except Exception as error:  # the hint is the user's, and may raise anything
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise AnnotationError(f"cannot read the annotation {text!r}: {reason}") from None
    return read(hint, dataclasses.replace(scope, within=scope.within | {text}))


def _class_by_dotted_name(text: str) -> Any:
    """The class that a dotted name such as `"package.module.Class"` means, if its module is imported.

    beartype reads such strings in the same way; programs write them so that two modules need not import each other.
    """
    parts = text.split(".")
    if not all(map(str.isidentifier, parts)):
        return None
    # The longest prefix that is a module comes first: a package may have an attribute named like one of its modules.
    for count in range(len(parts) - 1, 0, -1):
        value: Any = sys.modules.get(".".join(parts[:count]))
        if value is not None:
            for name in parts[count:]:
                value = getattr(value, name, None)
            return value if isinstance(value, type) else None
    return None


def _read_class(cls: type, scope: Scope) -> Annotation:
    """The annotation of a class: an array of jaxtyping, a pytree, a record, or an instance of any other class."""
    if issubclass(cls, jaxtyping.AbstractArray):
        # `jaxtyping.AbstractArray` itself says nothing of a shape and a dtype.
        if not hasattr(cls, "dim_str"):
            return ANYTHING
        array, anything = cls.array_type, cast(Any, jaxtyping.Shaped)
        # cloudpickle cannot import JAX's array class under its name and pickles a copy of it: an annotation from
        # another process would accept no array.
        named = getattr(array, "__module__", None), getattr(array, "__qualname__", None)
        array = jax.Array if named == (jax.Array.__module__, jax.Array.__qualname__) else array
        accepted = None if cls.dtypes is anything.dtypes else tuple(cls.dtypes)
        return ArrayOf(array, Dtypes(cls.dtype.__name__, accepted), Shape.parse(cls.dim_str))
    if issubclass(cls, jaxtyping.PyTree):
        if not hasattr(cls, "leaftype"):
            return TreeOf(ANYTHING)
        return TreeOf(read(cls.leaftype, scope), tuple(cls.structure.split()) if cls.structure else ())
    if cls in (jax.Array, np.ndarray):
        return ArrayOf(cls, ANY_DTYPE, ANY_SHAPE)
    if cls in (object, types.EllipsisType):
        return ANYTHING
    # A class without annotated fields is known by `isinstance` only.
    return Instance(cls) if form_of(cls) is None else RecordOf(cls)


def _read_annotated(hint: Any, scope: Scope) -> Annotation:
    inner = read(hint.__origin__, scope)
    # Metadata of other libraries is ignored.
    for extra in hint.__metadata__:
        if isinstance(extra, Batching):
            inner = BatchedOf(inner, extra.axes)
        elif isinstance(extra, Dims):
            inner = _linked(inner, extra)
    return inner


def _linked(inner: Annotation, dims: Dims) -> Annotation:
    """Passes links on to the records in a container: `Annotated[list[Linear], Dims("in=width")]`."""
    if isinstance(inner, RecordOf):
        return dataclasses.replace(inner, dims=dims)
    return inner.rebuilt(lambda part: _linked(part, dims))


def _read_generic(hint: Any, origin: type, arguments: tuple[Any, ...], scope: Scope) -> Annotation:
    """The annotation of a class with type arguments, such as `dict[str, X]`."""
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is ...:
            return SequenceOf(tuple, read(arguments[0], scope))
        return _read_tuple(arguments, scope)
    if origin is np.ndarray:  # the dtype of `NDArray[np.float64]` is ignored: under `jit` it is float32
        return _read_class(origin, scope)
    if origin is abc.Callable:
        parameters, returns = arguments if len(arguments) == 2 else (..., Any)
        listed = tuple(read(parameter, scope) for parameter in parameters) if isinstance(parameters, list) else None
        return CallableOf(listed, read(returns, scope))
    # A class as a value holds no array, so beartype checks `type[X]`.
    if origin is type:
        return Opaque(hint)
    annotations = [read(argument, scope) for argument in arguments]
    if is_box_class(origin):  # first, because a box is iterable as well
        return BoxOf(origin, annotations[0])
    for bases, build in _GENERICS:
        if issubclass(origin, bases):
            return build(origin, annotations)
    whole = _read_class(origin, scope)
    return dataclasses.replace(whole, arguments=tuple(annotations)) if isinstance(whole, Instance) else whole


def _read_tuple(arguments: tuple[Any, ...], scope: Scope) -> Annotation:
    """The annotation of `tuple[...]`, which has a fixed length unless a tuple of any length is unpacked in it.

    Of `tuple[int, *tuple[str, ...]]` the checks know that it has any length, and that each item is an int or a str.
    """
    items: list[Annotation] = []
    is_fixed = True
    for argument in arguments:
        # `Unpack[tuple[int, str]]` has the tuple as its argument; `*tuple[int, str]` is a tuple with a mark.
        if get_origin(argument) in _UNPACKS:
            inner = get_args(argument)[0]
        elif getattr(argument, "__unpacked__", False):
            inner = argument.__origin__[argument.__args__]
        else:
            items.append(read(argument, scope))
            continue
        if inner in scope.type_arguments:
            items += scope.type_arguments[inner]
            continue
        whole = read(inner, scope) if get_origin(inner) is tuple else SequenceOf(tuple, ANYTHING)  # a TypeVarTuple
        is_fixed &= isinstance(whole, TupleOf)
        items += whole.items if isinstance(whole, TupleOf) else (cast(SequenceOf, whole).item,)
    if is_fixed:
        return TupleOf(tuple(items))
    members: list[Any] = list(dict.fromkeys(items))
    union = OneOf(tuple(members)) if len(members) > 1 else members[0]
    return SequenceOf(tuple, ANYTHING if ANYTHING in members else union)


_UNPACKS = (typing.Unpack, typing_extensions.Unpack)


def _stream(origin: type, arguments: list[Annotation]) -> Annotation:
    # Only generators are sent values and return one, and the last arguments may be left out: `Generator[Y]`.
    known = arguments if issubclass(origin, (abc.Generator, abc.AsyncGenerator)) else arguments[:1]
    yields, sent, returns, *_ = [*known, ANYTHING, ANYTHING, ANYTHING]
    return StreamOf(origin, yields, sent, returns)


# The order matters: the first row whose classes a generic class inherits from says how to read it.
_GENERICS: tuple[tuple[tuple[type, ...], Callable[[type, list[Annotation]], Annotation]], ...] = (
    ((abc.Mapping,), lambda origin, args: MappingOf(origin, *(args if len(args) == 2 else (ANYTHING, ANYTHING)))),
    ((abc.Coroutine,), lambda origin, args: AwaitableOf(origin, args[-1])),
    ((abc.Awaitable,), lambda origin, args: AwaitableOf(origin, args[0])),
    ((abc.Iterator, abc.AsyncIterator), _stream),
    ((abc.Collection,), lambda origin, args: SequenceOf(origin, args[0])),
    ((abc.Iterable, abc.AsyncIterable), _stream),
)


def _read_alias(alias: Any, hint: Any, scope: Scope) -> Annotation:
    """The annotation that a `type` alias stands for, with its type parameters replaced by their arguments."""
    if hint in scope.within:
        return ANYTHING
    try:
        value, parameters = alias.__value__, getattr(alias, "__type_params__", ())
    except (NameError, AttributeError, ImportError) as error:  # `__value__` is evaluated lazily, and may fail only here
        return Unresolved(str(hint), str(error))
    type_arguments, arguments = {**scope.type_arguments}, [read(argument, scope) for argument in get_args(hint)]
    for number, parameter in enumerate(parameters if arguments else ()):
        if isinstance(parameter, TypeVar):
            type_arguments[parameter] = arguments.pop(0) if arguments else ANYTHING
        else:  # a TypeVarTuple takes the arguments that the parameters after it leave over
            count = max(len(arguments) - (len(parameters) - number - 1), 0)
            type_arguments[parameter], arguments = tuple(arguments[:count]), arguments[count:]
    return read(value, dataclasses.replace(scope, within=scope.within | {hint}, type_arguments=type_arguments))


def _read_named(hint: Any, scope: Scope) -> Annotation:
    """The annotation of a type variable, a `NewType` or a `type` alias; any other hint is left to beartype."""
    if isinstance(hint, TypeVar):
        if hint in scope.type_arguments:
            return scope.type_arguments[hint]
        if hint.__bound__ is not None:
            return read(hint.__bound__, scope)
        members = tuple(read(constraint, scope) for constraint in hint.__constraints__)
        return OneOf(members) if members else Variable(hint.__name__)
    if hasattr(hint, "__supertype__"):
        return read(hint.__supertype__, scope)
    if "__value__" in dir(get_origin(hint) or hint):  # `hasattr` would evaluate the alias
        return _read_alias(get_origin(hint) or hint, hint, scope)
    if isinstance(hint, (typing.ParamSpec, typing.ParamSpecArgs, typing.ParamSpecKwargs)):
        return ANYTHING
    return Opaque(hint)
