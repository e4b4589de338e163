"""What a value is made of: one level of it, and a fold over all levels.

Weft asks several questions of values that are no arrays, and each is a use of what stands here:

| question | asked by |
|---|---|
| May a kept trace of this function serve another one? | `core/constants.py` |
| Does what it returns hide a tracer? | `core/interpreter/hidden.py` |
| Is it the one that a checkpoint was saved, or a function exported with? | `modules/checkpoints/configuration.py` |
| Has it changed since a plan was made? | `nnx/objects/stability.py` |
| Does it reach something of JAX's that somebody replaced? | `modules/untouched.py` |

So all of them see a function's defaults and keyword defaults, a partial application's arguments, a method's owner and
an object's slots. They differ in what they say of a value by itself, and in how they put the answers for its parts
together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from weft.core.caches import kept

R = TypeVar("R")

NOTHING = object()
# The flag of types that a program makes, by a class statement.
_HEAP_TYPE = 1 << 9
# What an object takes that has a `__dict__`, may be referred to weakly, and nothing else; and what a slot adds.
_PLAIN = type("_Plain", (), {}).__basicsize__
_SLOT = type("_Slotted", (), {"__slots__": ("slot",)}).__basicsize__ - object.__basicsize__


class Makeup(NamedTuple):
    """One level of a value.

    Args:
        sort: "function", "method", "partial", "mapping", "sequence", "set", "wrapped" or "object".
        names: of its parts: keys, numbers, names of attributes and of what a function closes over.
        values: the parts.
    """

    sort: str
    names: Collection[Any]
    values: Collection[Any]


def makeup_of(value: Any, *, compared: bool = True) -> Makeup:
    """What a value is made of, one level deep.

    Args:
        value: anything but an array.
        compared: whether of a dataclass only those fields count that are compared, and of a function not its
            attributes.

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
    found: dict[str, Any]
    if sort == "function":
        given = {name: part for name in _GIVEN if (part := getattr(value, name))}
        found = {**given, **closed_over(value), **({} if compared else cast("dict[str, Any]", vars(value)))}
    elif hasattr(value, "__wrapped__"):
        sort, found = "wrapped", {"__wrapped__": value.__wrapped__}
    else:
        found = _attributes(value, compared)
    return Makeup(sort, found, found.values())


def fold(
    value: Any,
    look: Callable[[Any], Makeup | R],
    combine: Callable[[Any, Makeup, list[R]], R],
    again: Callable[[int], R],
    deepest: int = 100,
) -> R:
    """An answer about a value, from the answers about its parts.

    Args:
        value: anything.
        look: answers about a value by itself, or says what it is made of, to be asked further.
        combine: makes the answer about a value, given its makeup and the answers about its parts.
        again: the answer about a value that holds itself, given how many levels further out it is; 0 for what lies
            too deep.
        deepest: how many levels are looked into.

    >>> fold([1, [2, 3]], lambda x: makeup_of(x) if type(x) is list else x, lambda *x: sum(x[-1]), lambda level: 0)
    6
    """

    found = look(value)
    return _inside(value, found, (look, combine, again, deepest), ()) if type(found) is Makeup else cast("R", found)


def _inside(value: Any, makeup: Makeup, asked: Any, around: tuple[int, ...]) -> Any:
    look, combine, again, deepest = asked
    if id(value) in around:
        return again(len(around) - around.index(id(value)))
    if len(around) >= deepest:
        return again(0)
    within = (*around, id(value))
    answers: list[Any] = []
    for part in makeup.values:
        found = look(part)
        answers.append(_inside(part, found, asked, within) if type(found) is Makeup else found)
    return combine(value, makeup, answers)


# --- the sorts --------------------------------------------------------------------------------------------------------

_GIVEN = ("__defaults__", "__kwdefaults__")
# The classes of each sort, and the attributes that are the parts of its values where these are always the same.
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


@kept("class")
def _sort_of(kind: type) -> tuple[str, tuple[str, ...] | None]:
    return next(((sort, names) for kinds, sort, names in _SORTS if issubclass(kind, kinds)), ("object", None))


def _attributes(value: Any, compared: bool) -> dict[str, Any]:
    kind = cast("type[Any]", type(value))
    if compared and (names := _fields(kind)) is not None:
        return {name: getattr(value, name, None) for name in names}
    slots = {name: getattr(value, name) for name in _slots(kind) if hasattr(value, name)}
    slots.pop("__dict__", None)
    return slots | getattr(value, "__dict__", {})


@kept("class")
def _fields(kind: type) -> list[str] | None:
    is_dataclass = dataclasses.is_dataclass(kind)
    return [field.name for field in dataclasses.fields(kind) if field.compare] if is_dataclass else None


@kept("class")
def _slots(kind: type) -> list[str]:
    # Their descriptors have the names under which private ones are kept, and `__slots__` may be one text.
    return [
        name
        for cls in reversed(kind.__mro__)
        for name, slot in vars(cls).items()
        if isinstance(slot, types.MemberDescriptorType)  # of a namespace, its `__dict__` too
    ]


@kept("class")
def is_all_attributes(kind: type) -> bool:
    """Whether objects of a class are nothing but their attributes: no base of it is written in C, and holds more.

    >>> class Log(list):
    ...     pass
    >>> is_all_attributes(types.SimpleNamespace), is_all_attributes(Log), is_all_attributes(object)
    (True, False, False)
    """
    is_python = all(base.__flags__ & _HEAP_TYPE or base in (object, types.SimpleNamespace) for base in kind.__mro__)
    # Some classes that are written in C have the flag, too: they take more room than their slots.
    room = _PLAIN + _SLOT * len(_slots(kind))
    return is_python and kind is not object and kind.__basicsize__ <= room and not kind.__itemsize__


def compares_by_identity(kind: type) -> bool:
    """Whether values of a type equal nothing but themselves."""
    return kind.__eq__ is object.__eq__


def has_hash(value: Any) -> bool:
    """Whether a value can be a key."""
    if type(value).__hash__ is None:  # an error that is caught costs more than all else here
        return False
    try:
        hash(value)
    except TypeError:
        return False
    return True


# --- functions --------------------------------------------------------------------------------------------------------


def closed_over(function: FunctionType) -> dict[str, Any]:
    """What a function closes over, by name.

    >>> def outer(n):
    ...     return lambda x: x + n
    >>> closed_over(outer(2))
    {'n': 2}
    """
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            found[name] = cell.cell_contents
    return found


def values_given(function: FunctionType) -> list[Any]:
    """What a function closes over, its defaults and its keyword defaults."""
    keywords = function.__kwdefaults__ or {}
    return [*closed_over(function).values(), *(function.__defaults__ or ()), *keywords.values()]


def globals_read(function: FunctionType) -> dict[str, Any]:
    """The globals that a function, or one inside of it, may read, by name."""
    module = function.__globals__
    return {name: module[name] for name in names_read(function.__code__) if name in module}


def names_read(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes that a text reads, and those inside of it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from names_read(inner)


# --- names and arrays -------------------------------------------------------------------------------------------------


def named(module: str, qualname: str) -> Any:
    """What a name leads to in this process, without importing anything; `NOTHING` if it leads nowhere.

    >>> named("builtins", "str.join") is str.join, named("builtins", "unknown") is NOTHING
    (True, True)
    """
    if "<" in qualname:  # a lambda, or what a function made
        return NOTHING
    first, *rest = qualname.split(".")
    try:
        # Not by `getattr`: a package's `__getattr__` may import.
        return functools.reduce(getattr, rest, vars(sys.modules[module])[first])
    except (AttributeError, KeyError):
        return NOTHING


def digest_of(array: Any) -> str:
    """A hash of an array's numbers; of keys, that of their data."""
    data = jax.random.key_data(array) if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else array
    return hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()
