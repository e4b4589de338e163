"""Annotations: what a type hint says, as a tree of frozen data.

`read(hint, scope)` turns any hint into one of the classes below; both the runtime checker and the prover work on
these, never on hints. jaxtyping's hints are read through their public attributes (`dim_str`, `dtypes`, `array_type`;
`leaftype` and `structure` of a `PyTree`). Nothing is lost: each node keeps the hint that it was read from as `text`
where a reader needs it.

| hint | node |
|---|---|
| `Float[Array, "a b"]`, `Array`, `np.ndarray` | `ArrayOf` |
| `PyTree[leaf, "T"]` | `TreeOf` |
| `X | Y`, `Optional[X]` | `OneOf` |
| `tuple[...]`, `list[X]`, `dict[K, V]`, and their ABCs | `TupleOf`, `SequenceOf`, `MappingOf` |
| Module, dataclass, NamedTuple, TypedDict, `Self` | `RecordOf` |
| `Batched[X, "layers"]` | `BatchedOf` |
| `Annotated[X, Dims("in=width")]` | `RecordOf` with links |
| `Iterator[X]`, `Generator[Y, S, R]`, `AsyncIterator[X]`, `Awaitable[X]` | `StreamOf`, `AwaitableOf` |
| `Callable[[X], Y]` | `CallableOf` |
| `Literal[...]`, a class, `Any` | `LiteralOf`, `Instance`, `Anything` |
| anything else | `Opaque`, left to beartype |
| a string that names what does not exist at run time | `Unresolved` |
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ForwardRef, Literal, TypeVar, Union, get_args, get_origin

import equinox as eqx
import jax
import jaxtyping
import numpy as np
import typing_extensions
from weft.typecheck.batched import Batching, Dims
from weft.typecheck.dims import Shape
from weft.typecheck.errors import AnnotationError


@dataclass(frozen=True)
class Dtypes:
    """A class of dtypes: `Float`, `Int32`, `Shaped`, ...; `accepted=None` is any dtype."""

    name: str
    accepted: tuple[str | re.Pattern[str], ...] | None = None

    def accepts(self, dtype: str) -> bool:
        """Whether a dtype is in the class, by its name: `float32`, `prng_key`."""
        if self.accepted is None:
            return True
        return any(dtype == one if isinstance(one, str) else bool(one.match(dtype)) for one in self.accepted)


ANY_DTYPE = Dtypes("Shaped")


@dataclass(frozen=True)
class ArrayOf:
    """An array: of a class (`Any`: whatever has a shape and a dtype), a class of dtypes, and a shape."""

    array_type: Any
    dtype: Dtypes
    shape: Shape

    def __str__(self) -> str:
        return f'{self.dtype.name}[{getattr(self.array_type, "__name__", "Any").rpartition(".")[2]}, "{self.shape}"]'


@dataclass(frozen=True)
class TreeOf:
    """A pytree whose leaves are alike; `structure` is the names that its structure is made of, `...` included."""

    leaf: Annotation
    structure: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"PyTree[{self.leaf}{', ' + repr(' '.join(self.structure)) if self.structure else ''}]"


@dataclass(frozen=True)
class OneOf:
    """A union, in order."""

    members: tuple[Annotation, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.members))

    @property
    def optional(self) -> bool:
        """Whether `None` is one of the members."""
        return NONE in self.members


@dataclass(frozen=True)
class TupleOf:
    """A tuple of a fixed length."""

    items: tuple[Annotation, ...]

    def __str__(self) -> str:
        return f"tuple[{', '.join(map(str, self.items)) or '()'}]"


@dataclass(frozen=True)
class SequenceOf:
    """A list, tuple, set or other collection of any length; `cls` is what `isinstance` is asked for."""

    cls: type
    item: Annotation

    def __str__(self) -> str:
        return f"tuple[{self.item}, ...]" if self.cls is tuple else f"{self.cls.__name__}[{self.item}]"


@dataclass(frozen=True)
class MappingOf:
    """A mapping."""

    cls: type
    key: Annotation
    value: Annotation

    def __str__(self) -> str:
        return f"{self.cls.__name__}[{self.key}, {self.value}]"


@dataclass(frozen=True)
class RecordOf:
    """A value with named, annotated fields; they are read when asked for (`signatures.fields_of`), so types may recur.

    Attributes:
        cls: the class.
        form: which sort of class it is.
        dims: links between dims of the record and dims in the scope that it is used in, from `Dims`.
    """

    cls: type
    form: Literal["module", "dataclass", "namedtuple", "typeddict"]
    dims: Dims | None = None

    def __str__(self) -> str:
        return f"{self.cls.__name__}({self.dims})" if self.dims else self.cls.__name__


@dataclass(frozen=True)
class BatchedOf:
    """Something whose arrays all carry extra leading axes."""

    inner: Annotation
    axes: Shape

    def __str__(self) -> str:
        return f'Batched[{self.inner}, "{self.axes}"]'


@dataclass(frozen=True)
class StreamOf:
    """An iterator or generator: what it yields, is sent, and returns; never consumed by a check."""

    cls: type
    yields: Annotation
    sent: Annotation
    returns: Annotation

    def __str__(self) -> str:
        return f"{self.cls.__name__}[{self.yields}]"


@dataclass(frozen=True)
class AwaitableOf:
    """Something to await, and its result."""

    cls: type
    result: Annotation

    def __str__(self) -> str:
        return f"{self.cls.__name__}[{self.result}]"


@dataclass(frozen=True)
class CallableOf:
    """A callable; `parameters=None` is `...`."""

    parameters: tuple[Annotation, ...] | None
    returns: Annotation

    def __str__(self) -> str:
        parameters = "..." if self.parameters is None else f"[{', '.join(map(str, self.parameters))}]"
        return f"Callable[{parameters}, {self.returns}]"


@dataclass(frozen=True)
class LiteralOf:
    """One of these values."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"Literal[{', '.join(map(repr, self.values))}]"


@dataclass(frozen=True)
class Instance:
    """An instance of a class."""

    cls: type

    def __str__(self) -> str:
        return "None" if self.cls is type(None) else self.cls.__name__


@dataclass(frozen=True)
class Anything:
    """No annotation, `Any`, `object`, or a type variable without a bound."""

    def __str__(self) -> str:
        return "Any"


@dataclass(frozen=True)
class Opaque:
    """A hint that has no array in it and is left to beartype."""

    hint: Any = field(hash=False)

    def __str__(self) -> str:
        return str(self.hint).replace("typing.", "")


@dataclass(frozen=True)
class Unresolved:
    """A string annotation whose names do not exist at run time (imported under `TYPE_CHECKING`, say)."""

    text: str
    reason: str

    def __str__(self) -> str:
        return self.text


Annotation = (
    ArrayOf
    | TreeOf
    | OneOf
    | TupleOf
    | SequenceOf
    | MappingOf
    | RecordOf
    | BatchedOf
    | StreamOf
    | AwaitableOf
    | CallableOf
    | LiteralOf
    | Instance
    | Anything
    | Opaque
    | Unresolved
)

ANYTHING, NONE = Anything(), Instance(type(None))


@dataclass(frozen=True)
class Scope:
    """Where a hint is read: the names that its strings may use, and the class that `Self` stands for."""

    globals: Mapping[str, Any] = field(default_factory=dict)
    locals: Mapping[str, Any] = field(default_factory=dict)
    owner: type | None = None


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
    try:
        hint = eval(text, dict(scope.globals), scope.locals)
    except (NameError, AttributeError, ImportError) as error:
        return Unresolved(text, str(error))
    except AnnotationError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise AnnotationError(f"cannot read the annotation {text!r}: {reason}") from None
    return read(hint, scope)


def _read_class(cls: type, scope: Scope) -> Annotation:
    if issubclass(cls, jaxtyping.AbstractArray):
        if not hasattr(cls, "dim_str"):
            return ANYTHING
        return ArrayOf(cls.array_type, _dtypes_of(cls), Shape.parse(cls.dim_str))
    if issubclass(cls, jaxtyping.PyTree):
        if not hasattr(cls, "leaftype"):
            return TreeOf(ANYTHING)
        return TreeOf(read(cls.leaftype, scope), tuple(cls.structure.split()) if cls.structure else ())
    if cls in (jax.Array, np.ndarray):
        return ArrayOf(cls, ANY_DTYPE, Shape.parse("..."))
    if cls in (object, types.EllipsisType):
        return ANYTHING
    form = record_form(cls)
    return Instance(cls) if form is None else RecordOf(cls, form)


def record_form(cls: type) -> Literal["module", "dataclass", "namedtuple", "typeddict"] | None:
    """Which sort of class with annotated fields it is, if any."""
    if issubclass(cls, eqx.Module):
        return "module"
    if typing_extensions.is_typeddict(cls):
        return "typeddict"
    if dataclasses.is_dataclass(cls):
        return "dataclass"
    if issubclass(cls, tuple) and hasattr(cls, "_fields") and "__annotations__" in vars(cls):
        return "namedtuple"
    return None


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
    match inner:
        case RecordOf():
            return dataclasses.replace(inner, dims=dims)
        case SequenceOf():
            return dataclasses.replace(inner, item=_linked(inner.item, dims))
        case MappingOf():
            return dataclasses.replace(inner, value=_linked(inner.value, dims))
        case TupleOf():
            return TupleOf(tuple(_linked(item, dims) for item in inner.items))
        case OneOf():
            return OneOf(tuple(_linked(member, dims) for member in inner.members))
        case BatchedOf():
            return dataclasses.replace(inner, inner=_linked(inner.inner, dims))
        case TreeOf():
            return dataclasses.replace(inner, leaf=_linked(inner.leaf, dims))
        case _:
            return inner


def _read_generic(hint: Any, origin: type, arguments: tuple[Any, ...], scope: Scope) -> Annotation:
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is ...:
            return SequenceOf(tuple, read(arguments[0], scope))
        return TupleOf(tuple(read(argument, scope) for argument in arguments if argument != ()))
    if origin is abc.Callable:
        parameters, returns = arguments if len(arguments) == 2 else (..., Any)
        listed = tuple(read(one, scope) for one in parameters) if isinstance(parameters, list) else None
        return CallableOf(listed, read(returns, scope))
    if origin is type:
        return Opaque(hint)
    given = [read(argument, scope) for argument in arguments]
    for bases, build in _GENERICS:
        if issubclass(origin, bases):
            return build(origin, given)
    return _read_class(origin, scope)


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


def _read_named(hint: Any, scope: Scope) -> Annotation:
    if isinstance(hint, TypeVar):
        if hint.__bound__ is not None:
            return read(hint.__bound__, scope)
        return OneOf(tuple(read(one, scope) for one in hint.__constraints__)) if hint.__constraints__ else ANYTHING
    if hasattr(hint, "__supertype__"):
        return read(hint.__supertype__, scope)
    if hasattr(hint, "__value__"):
        return read(hint.__value__, scope)
    if isinstance(hint, (typing.ParamSpec, typing.ParamSpecArgs, typing.ParamSpecKwargs)):
        return ANYTHING
    return Opaque(hint)
