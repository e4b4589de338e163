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
from typing import Any

import jax
import numpy as np
from weft.core.makeup import Makeup, compares_by_identity, fold, has_hash, is_all_attributes, makeup_of
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


_CONTAINERS = (dict, list, tuple, set, slice)
_WITHOUT_HASH = frozenset((dict, list))


def is_stable(value: Any) -> bool:
    """Whether a static value stays equal to what it equals now.

    >>> is_stable(("relu", 3)), is_stable([3]), is_stable(print)
    (True, False, True)
    """
    return fold(value, _look_at_stable, _all_are_stable, lambda level: True)


def _look_at_stable(value: Any) -> bool | Makeup:
    kind = type(value)
    if kind in _ATOMS or isinstance(value, _IMMUTABLE):
        return True
    if kind is slice:
        return has_hash(value)  # from Python 3.12 on
    if isinstance(value, types.MethodType):
        return compares_by_identity(type(value.__self__))
    is_frozen = is_compared_by_fields(kind) and kind.__dataclass_params__.frozen
    if is_frozen or isinstance(value, tuple | frozenset) or kind is HashableMapping:
        return makeup_of(value)
    return compares_by_identity(kind)


def _all_are_stable(value: Any, makeup: Makeup, stable: list[bool]) -> bool:
    return all(stable) and (makeup.sort != "mapping" or all(map(is_stable, makeup.names)))


# --- what has no hash -------------------------------------------------------------------------------------------------


def is_watchable(value: Any) -> bool:
    """Whether a snapshot says all there is to say of a value without a hash: what it is made of is stable.

    >>> is_watchable({"sizes": [3]}), is_watchable([np.zeros(2)])
    (True, False)
    """
    return fold(value, _look_at_watchable, _all_are_stable, lambda level: True)


def _look_at_watchable(value: Any) -> bool | Makeup:
    return is_stable(value) if has_hash(value) else _inside(value) or False


def _inside(value: Any) -> Makeup | None:
    """What a value without a hash is made of, if that is all that its `==` looks at."""
    kind = type(value)
    if isinstance(value, _CONTAINERS) or is_compared_by_fields(kind):
        return makeup_of(value)
    # What says itself what it equals may look at all of it. Of arrays `==` gives an array.
    is_all = is_all_attributes(kind) and not hasattr(kind, "__array__")
    return makeup_of(value, compared=False) if is_all else None


def snapshot(value: Any) -> Any:
    """What a value without a hash is like now, as long as it is made of containers and of objects with attributes.

    Args:
        value: a list, dict, set, dataclass, namespace, ...

    >>> config = {"width": [3]}
    >>> before = snapshot(config)
    >>> config["width"].append(4)
    >>> before == snapshot(config), before == snapshot({"width": [3]})
    (False, True)
    """
    return fold(value, _look_at_now, _as_it_is, lambda level: ("again", level))


def _look_at_now(value: Any) -> Any:
    # An error that is caught costs as much as all else here.
    if type(value) not in _WITHOUT_HASH and has_hash(value):
        return value
    found = _copied(value) or _inside(value)
    return value if found is None else found


def _as_it_is(value: Any, makeup: Makeup, parts: list[Any]) -> Any:
    if makeup.sort == "set":
        return frozenset(value)
    return type(value), parts if makeup.sort == "sequence" else dict(zip(makeup.names, parts, strict=True))


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
    memo: dict[int, Any] = {}

    def keep(*parts: Any) -> None:
        memo.update((id(part), part) for part in parts)

    def look(part: Any) -> Makeup | None:
        return keep(part) if has_hash(part) else _inside(part)

    def combine(_: Any, makeup: Makeup, __: list[None]) -> None:
        if makeup.sort == "mapping":
            keep(*makeup.names)

    fold(value, look, combine, lambda level: None)
    try:
        if is_compared_by_fields(type(value)):
            twin, makeup = object.__new__(type(value)), makeup_of(value)
            for name, part in zip(makeup.names, makeup.values, strict=True):
                object.__setattr__(twin, name, copy.deepcopy(part, memo))
        else:
            twin = copy.deepcopy(value, memo)
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
def is_compared_by_fields(kind: type) -> bool:
    """Whether a class is of dataclasses whose `==` was written by `dataclasses`, and so comes from no file.

    >>> @dataclasses.dataclass
    ... class Config:
    ...     width: int
    >>> is_compared_by_fields(Config), is_compared_by_fields(dict)
    (True, False)
    """
    written = getattr(kind.__eq__, "__code__", None)
    return dataclasses.is_dataclass(kind) and written is not None and written.co_filename.startswith("<")
