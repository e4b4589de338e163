"""Stability: which static values cannot change behind a plan's back.

A static value counts by `==`. One that is compared by identity, or is immutable all the way down, is *stable*. Any
other may come to equal something else without anyone noticing, so it is asked at each call: for its hash if it has
one, else whether it still is what it was like, as far as its own `==` looks. Where neither can be asked, the object
that has the value is planned anew each time.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from weft.nnx.objects.attributes import HashableMapping

_ATOMS = frozenset(
    (
        bool, int, float, complex, str, bytes, type(None), type(...), range, type, np.dtype,
        types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type(jax.jit(lambda: None)),
    )
)  # fmt: skip
_IMMUTABLE = (
    enum.Enum,
    type,
    np.dtype,
    np.generic,
    jax.sharding.Mesh,
    jax.sharding.AbstractMesh,
    jax.sharding.Sharding,
    jax.sharding.PartitionSpec,
    jax.ShapeDtypeStruct,
    jax.tree_util.PyTreeDef,
)


# The flag of types that a program makes, by a class statement.
_HEAP_TYPE = 1 << 9
# What an object takes that has a `__dict__`, may be referred to weakly, and nothing else.
_PLAIN = type("_Plain", (), {}).__basicsize__


def is_stable(value: Any) -> bool:
    """Whether a static value stays equal to what it equals now.

    >>> is_stable(("relu", 3)), is_stable([3]), is_stable(print)
    (True, False, True)
    """
    kind = type(value)
    if kind in _ATOMS or isinstance(value, _IMMUTABLE):
        return True
    if kind is slice:
        return has_hash(value)  # from Python 3.12 on
    if isinstance(value, tuple | frozenset):
        return all(map(is_stable, value))
    if kind is HashableMapping:
        return all(is_stable(part) for item in value.items() for part in item)
    if isinstance(value, types.MethodType):
        return kind_compares_by_identity(type(value.__self__))
    if kind_compares_by_identity(kind):
        return True
    if dataclasses.is_dataclass(value) and kind.__dataclass_params__.frozen:
        return all(is_stable(getattr(value, field.name, None)) for field in dataclasses.fields(value))
    return False


def has_hash(value: Any) -> bool:
    """Whether a value can be a key."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def snapshot(value: Any, around: tuple[int, ...] = ()) -> Any:
    """What a value without a hash is like now, as long as it is made of containers and of objects with a `__dict__`.

    Args:
        value: a list, dict, set, dataclass, namespace, ...
        around: the identities of what it is in, since it may hold itself.

    >>> config = {"width": [3]}
    >>> before = snapshot(config)
    >>> config["width"].append(4)
    >>> before == snapshot(config), before == snapshot({"width": [3]})
    (False, True)
    """
    if id(value) in around:
        return ("again", around.index(id(value)))
    if has_hash(value):
        return value
    copied = _copied(value)
    if copied is not None:
        return copied
    around = (*around, id(value))
    if isinstance(value, dict):
        return type(value), {key: snapshot(part, around) for key, part in value.items()}
    if isinstance(value, set):
        return frozenset(value)
    parts = _parts(value)
    return value if parts is None else (type(value), [snapshot(part, around) for part in parts])


class Copied:
    """A copy of a value, which says itself what it equals: one question to it, in place of a walk over its parts."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Copied) and type(self.value) is type(other.value) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]


def _copied(value: Any) -> Copied | None:
    """A copy that equals the value, if it is plain data that shows whether it still is what it was."""
    if not is_watchable(value):
        return None
    # What has a hash is kept, since a copy of what is compared by identity equals nothing.
    memo = {id(part): part for part in _parts_with_hash(value, ())}
    names = compared_fields(type(value))
    try:
        if names is None:
            twin = copy.deepcopy(value, memo)
        else:
            twin = object.__new__(type(value))
            for name in names:
                object.__setattr__(twin, name, copy.deepcopy(getattr(value, name), memo))
        # A NaN equals nothing, and what holds itself cannot be compared: these are looked at part by part.
        return Copied(twin) if value == twin else None
    except Exception:  # a copy, and an `==`, of the user's own
        return None


def still_is(value: Any, seen: Any) -> bool:
    """Whether a value is what it was like when a snapshot of it was made; it is asked by its own `==` if it has one.

    >>> config = {"width": 3}
    >>> before = snapshot(config)
    >>> config["width"] = 4
    >>> still_is(config, before)
    False
    """
    if isinstance(seen, Copied):
        return bool(value == seen.value)
    # In tuples, so that the same object is equal whatever its `==` says (an array's says no truth value).
    return (snapshot(value),) == (seen,)


@functools.cache
def compared_fields(kind: type) -> tuple[str, ...] | None:
    """The fields that the `==` of a dataclass looks at, if `dataclasses` wrote it.

    >>> @dataclasses.dataclass
    ... class Config:
    ...     width: int
    ...     memo: dict = dataclasses.field(compare=False)
    >>> compared_fields(Config)
    ('width',)
    """
    # What `dataclasses` writes comes from no file.
    written = getattr(kind.__eq__, "__code__", None)
    if not dataclasses.is_dataclass(kind) or written is None or not written.co_filename.startswith("<"):
        return None
    return tuple(field.name for field in dataclasses.fields(kind) if field.compare)


@functools.cache
def _is_written_with_equality(kind: type) -> bool:
    """Whether a class and its bases are Python's, and one of them says what its objects equal."""
    is_python = all(base is object or base.__flags__ & _HEAP_TYPE for base in kind.__mro__)
    # Of arrays `==` gives an array.
    return is_python and isinstance(kind.__eq__, types.FunctionType) and not hasattr(kind, "__array__")


def is_watchable(value: Any, around: tuple[int, ...] = ()) -> bool:
    """Whether a snapshot says all there is to say of a value without a hash: what it is made of is stable.

    >>> is_watchable({"sizes": [3]}), is_watchable([np.zeros(2)])
    (True, False)
    """
    if id(value) in around:
        return True
    if has_hash(value):
        return is_stable(value)
    parts = _parts(value)
    return parts is not None and all(is_watchable(part, (*around, id(value))) for part in parts)


def _parts(value: Any) -> list[Any] | None:
    """What the `==` of a value without a hash looks at, or None if nobody knows."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list | tuple | set):
        return list(value)
    if isinstance(value, slice):
        return [value.start, value.stop, value.step]
    names = compared_fields(type(value))
    if names is not None:
        return [getattr(value, name, None) for name in names]
    is_python = hasattr(value, "__dict__") and _is_written_with_equality(type(value))
    return list(vars(value).values()) if is_python or _is_all_attributes(value) else None


def _parts_with_hash(value: Any, around: tuple[int, ...]) -> Iterator[Any]:
    if has_hash(value):
        yield value
    elif id(value) not in around:
        for part in _parts(value) or ():
            yield from _parts_with_hash(part, (*around, id(value)))


def _is_all_attributes(value: Any) -> bool:
    """Whether an object is nothing but its `__dict__`: it has no slots, and no base that is written in C."""
    kind = type(value)
    if not hasattr(value, "__dict__") or hasattr(kind, "__slots__"):
        return False
    # By size: a base that is written in C keeps what it has in the object itself, and from Python 3.12 on nothing else
    # tells it from a class of Python's. A namespace's own field is its `__dict__`.
    own = types.SimpleNamespace.__basicsize__ - object.__basicsize__ if isinstance(value, types.SimpleNamespace) else 0
    return kind.__basicsize__ <= _PLAIN + own and not kind.__itemsize__


def kind_compares_by_identity(kind: type) -> bool:
    """Whether values of a type equal nothing but themselves."""
    return kind.__eq__ is object.__eq__
