"""The parts of a value that is no array: one level of it (`makeup_of`), and a fold over all levels (`fold`).

Several modules search through values that are no arrays:

| question | module |
|---|---|
| May a cached trace of this function serve another function? | `core/constants.py` |
| Does an object that a function returns hide a tracer? | `core/interpreter/hidden.py` |
| Does a value in a record's field hide an array? | `core/records/configuration.py` |
| Is this configuration the one that a checkpoint was saved with? | `modules/checkpoints/configuration.py` |
| Has this value changed since a plan was made? | `nnx/objects/stability.py` |
| Does this function use something of JAX's that somebody replaced? | `modules/untouched.py` |

As they all use `makeup_of`, none forgets a function's defaults and keyword defaults, a partial application's arguments,
a method's owner or an object's slots. They differ in the answer for a single value (`look`), and in how they combine
the answers for its parts (`combine`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from weft.core.caches import cached_by

R = TypeVar("R")

# CPython's flag of types that a class statement creates.
_HEAP_TYPE = 1 << 9
# The size of an object with a `__dict__` and weak references but nothing else, and the size that each slot adds.
_PLAIN = type("_Plain", (), {}).__basicsize__
_SLOT = type("_Slotted", (), {"__slots__": ("slot",)}).__basicsize__ - object.__basicsize__


class Makeup(NamedTuple):
    """One level of a value.

    Args:
        sort: "function", "method", "partial", "mapping", "sequence", "set", "wrapped" or "object".
        names: the names of its parts: keys, indices, and names of attributes and of variables in a closure.
        values: the parts.
    """

    sort: str
    names: Collection[Any]
    values: Collection[Any]


def makeup_of(value: Any, *, compared: bool = True) -> Makeup:
    """The parts of a value, one level deep.

    Args:
        value: anything but an array.
        compared: whether to leave out fields of a dataclass that are not compared, and attributes and derivative
            rules of a function.

    >>> makeup_of(functools.partial(min, 1))
    Makeup(sort='partial', names=('func', 'args', 'keywords'), values=[<built-in function min>, (1,), {}])
    >>> makeup_of(["a"])
    Makeup(sort='sequence', names=range(0, 1), values=['a'])
    """
    kind = cast("type[Any]", type(value))
    sort, attributes = _sort_of(kind)
    if sort in ("sequence", "set"):
        return Makeup(sort, range(len(value)), value)
    if sort == "mapping":
        return Makeup(sort, value, value.values())
    if attributes is not None:
        return Makeup(sort, attributes, [getattr(value, name) for name in attributes])
    parts: dict[str, Any]
    if sort == "function":
        defaults = {name: part for name in _DEFAULTS if (part := getattr(value, name))}
        parts = {**defaults, **closed_over(value), **({} if compared else cast("dict[str, Any]", vars(value)))}
    elif hasattr(value, "__wrapped__"):
        sort, parts = "wrapped", {"__wrapped__": value.__wrapped__}
        if not compared:
            own = getattr(value, "__dict__", {})
            parts |= {name: jax.tree.leaves(own[name]) for name in _RULES if name in own}
    else:
        parts = _attributes(value, compared)
    return Makeup(sort, parts, parts.values())


def fold(
    value: Any,
    look: Callable[[Any], Makeup | R],
    combine: Callable[[Any, Makeup, list[R]], R],
    again: Callable[[int], R],
    deepest: int = 100,
) -> R:
    """An answer about a value, combined from the answers about its parts.

    Args:
        value: anything.
        look: the answer about a value, or its makeup if its parts decide.
        combine: the answer about a value, from the value, its makeup and the answers about its parts.
        again: the answer about a value inside of itself, from the number of levels between; from 0 for a value that
            lies too deep.
        deepest: the number of levels that are searched.

    >>> fold([1, [2, 3]], lambda x: makeup_of(x) if type(x) is list else x, lambda *x: sum(x[-1]), lambda level: 0)
    6
    """
    answer = look(value)
    return _inside(value, answer, (look, combine, again, deepest), ()) if type(answer) is Makeup else cast("R", answer)


def _inside(value: Any, makeup: Makeup, options: Any, around: tuple[int, ...]) -> Any:
    """The answer about a value whose parts decide; `around` has the ids of the values that it lies in."""
    look, combine, again, deepest = options
    if id(value) in around:
        return again(len(around) - around.index(id(value)))
    if len(around) >= deepest:
        return again(0)
    within = (*around, id(value))
    answers: list[Any] = []
    for part in makeup.values:
        answer = look(part)
        answers.append(_inside(part, answer, options, within) if type(answer) is Makeup else answer)
    return combine(value, makeup, answers)


# Types whose values hide nothing, or that belong to the whole program (a module), not to the value that refers to them.
_CLOSED = (str, bytes, int, float, complex, type(None), type, enum.Enum, types.ModuleType, np.ndarray, np.dtype)
# How many levels of an object are searched: enough for an array in the arguments of a `partial` in an attribute. What
# lies deeper mostly belongs to other parts of the program.
_DEEPEST_HIDDEN = 4


def hidden_in(value: Any, is_sought: Callable[[Any], bool]) -> list[tuple[str, Any]]:
    """The parts of a value for which `is_sought` is true, each with its place as a user would write it: `[0]`, `.name`,
    ` closes over name`."""

    def look(value: Any) -> Makeup | list[tuple[str, Any]]:
        if is_sought(value):
            return [("", value)]
        return [] if isinstance(value, (*_CLOSED, jax.Array)) else makeup_of(value, compared=False)

    def collect(value: Any, makeup: Makeup, parts: list[list[tuple[str, Any]]]) -> list[tuple[str, Any]]:
        named = zip(makeup.names, parts, strict=True)
        return [(_place(value, makeup, name) + rest, part) for name, below in named for rest, part in below]

    return fold(value, look, collect, lambda level: [], deepest=_DEEPEST_HIDDEN)


def _place(value: Any, makeup: Makeup, name: Any) -> str:
    if makeup.sort in ("mapping", "sequence", "set"):
        return f"[{name!r}]"
    is_cell = makeup.sort == "function" and name in value.__code__.co_freevars
    return f" closes over {name}" if is_cell else f".{name}"


# --- the sorts --------------------------------------------------------------------------------------------------------

_DEFAULTS = ("__defaults__", "__kwdefaults__")
# Where weft's transforms, `jax.custom_vjp` and `jax.custom_jvp` keep the derivative rules of a function.
_RULES = ("definitions", "fwd", "bwd", "jvp")
# The classes of each sort, and the attributes that are the parts of their values, if these are always the same.
_SORTS: tuple[tuple[Any, str, tuple[str, ...] | None], ...] = (
    (FunctionType, "function", None),
    ((list, tuple), "sequence", None),
    (Mapping, "mapping", None),
    ((set, frozenset), "set", None),
    (functools.partial, "partial", ("func", "args", "keywords")),
    (MethodType, "method", ("__func__", "__self__")),
    ((BuiltinFunctionType, types.MethodWrapperType), "method", ("__name__", "__self__")),
    (slice, "object", ("start", "stop", "step")),
)


@cached_by("class")
def _sort_of(kind: type) -> tuple[str, tuple[str, ...] | None]:
    return next(((sort, names) for kinds, sort, names in _SORTS if issubclass(kind, kinds)), ("object", None))


def _attributes(value: Any, compared: bool) -> dict[str, Any]:
    kind = cast("type[Any]", type(value))
    if compared and (names := _fields(kind)) is not None:
        return {name: getattr(value, name, None) for name in names}
    slots = {name: getattr(value, name) for name in _slots(kind) if hasattr(value, name)}
    slots.pop("__dict__", None)
    return slots | getattr(value, "__dict__", {})


@cached_by("class")
def _fields(kind: type) -> list[str] | None:
    is_dataclass = dataclasses.is_dataclass(kind)
    return [field.name for field in dataclasses.fields(kind) if field.compare] if is_dataclass else None


@cached_by("class")
def _slots(kind: type) -> list[str]:
    # From the descriptors, because a private slot is stored under its mangled name, and `__slots__` may be a string.
    return [
        name
        for cls in reversed(kind.__mro__)
        for name, slot in vars(cls).items()
        if isinstance(slot, types.MemberDescriptorType)  # of a namespace, its `__dict__` too
    ]


@cached_by("class")
def is_all_attributes(kind: type) -> bool:
    """Whether objects of a class are nothing but their attributes: a base that is written in C may hold more.

    >>> class Log(list):
    ...     pass
    >>> is_all_attributes(types.SimpleNamespace), is_all_attributes(Log), is_all_attributes(object)
    (True, False, False)
    """
    is_python = all(base.__flags__ & _HEAP_TYPE or base in (object, types.SimpleNamespace) for base in kind.__mro__)
    # Some classes that are written in C have the flag too; their objects are larger than their slots.
    room = _PLAIN + _SLOT * len(_slots(kind))
    return is_python and kind is not object and kind.__basicsize__ <= room and not kind.__itemsize__


def compares_by_identity(kind: type) -> bool:
    """Whether a value of this type equals only itself."""
    return kind.__eq__ is object.__eq__


def has_hash(value: Any) -> bool:
    """Whether a value is hashable."""
    if type(value).__hash__ is None:  # first, because to raise and catch an error takes longer than all else here
        return False
    try:
        hash(value)
    except TypeError:
        return False
    return True


# --- functions --------------------------------------------------------------------------------------------------------


def closed_over(function: FunctionType) -> dict[str, Any]:
    """The values in a function's closure, by name.

    >>> def outer(n):
    ...     return lambda x: x + n
    >>> closed_over(outer(2))
    {'n': 2}
    """
    values: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # the variable is not assigned yet
            values[name] = cell.cell_contents
    return values


def closure_and_defaults(function: FunctionType) -> list[Any]:
    """The values in a function's closure, its defaults and its keyword defaults."""
    keywords = function.__kwdefaults__ or {}
    return [*closed_over(function).values(), *(function.__defaults__ or ()), *keywords.values()]


def globals_read(function: FunctionType) -> dict[str, Any]:
    """The globals that a function, or one inside of it, may read, by name."""
    module = function.__globals__
    return {name: module[name] for name in names_read(function.__code__) if name in module}


def names_read(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes that code reads, in functions inside of it too."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from names_read(inner)


# --- arrays -----------------------------------------------------------------------------------------------------------


def digest_of(array: Any) -> str:
    """A hash of an array's values; for typed keys, of their data."""
    data = jax.random.key_data(array) if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else array
    return hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()
