"""Stability: which static values cannot change behind a plan's back.

A static value counts by `==`. One that is compared by identity, or is immutable all the way down, is *stable*. Any
other may come to equal something else without anyone noticing, so it is asked at each call: for its hash if it has
one, else whether it still is what it was like, as far as its own `==` looks. Where neither can be asked, the object
that has the value is planned anew each time.
"""

from __future__ import annotations

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
    """What a value without a hash is made of, if that is all that its `==` can look at."""
    kind = type(value)
    if isinstance(value, _CONTAINERS):
        return makeup_of(value)
    # Of arrays `==` gives an array.
    if not is_all_attributes(kind) or hasattr(kind, "__array__"):
        return None
    return makeup_of(value, compared=is_compared_by_fields(kind))


def snapshot(value: Any) -> Any:
    """A copy of a value without a hash, as far as it is made of containers and of objects with attributes.

    Args:
        value: a list, dict, set, dataclass, namespace, ...

    >>> config = {"width": [3]}
    >>> before = snapshot(config)
    >>> config["width"].append(4)
    >>> before == snapshot(config), before == snapshot({"width": [3]})
    (False, True)
    """
    copy = fold(value, _look_at_now, _copy, lambda level: ("again", level))
    # What holds itself, or a NaN, equals no copy: it is told by what it is made of.
    return copy if not is_watchable(value) or (value,) == (copy,) else _parts(value)


def _parts(value: Any) -> Any:
    return fold(
        value, _look_at_now, lambda value, makeup, parts: (type(value), *makeup.names, *parts), lambda level: level
    )


def _look_at_now(value: Any) -> Any:
    found = None if has_hash(value) else _inside(value)
    # An `==` of the program's may ask an array whether it is true, but is not asked where both are one object.
    own = found is not None and found.sort == "object" and not is_compared_by_fields(type(value))
    return value if found is None or (own and not is_watchable(value)) else found


def _copy(value: Any, makeup: Makeup, parts: list[Any]) -> Any:
    if makeup.sort == "sequence":
        return tuple(parts) if isinstance(value, tuple) else parts
    if makeup.sort == "set":
        return set(value)
    attributes = dict(zip(makeup.names, parts, strict=True))
    if makeup.sort == "mapping":
        return attributes
    if isinstance(value, slice):
        return slice(*parts)
    # Nobody's constructor is run, and what `==` does not look at is left out.
    copy = (types.SimpleNamespace if isinstance(value, types.SimpleNamespace) else object).__new__(type(value))
    for name, part in attributes.items():
        object.__setattr__(copy, name, part)
    return copy


def still_is(value: Any, seen: Any) -> bool:
    """Whether a value is what it was like when a snapshot of it was made, by its own `==`.

    >>> config = {"width": 3}
    >>> before = snapshot(config)
    >>> config["width"] = 4
    >>> still_is(config, before)
    False
    """
    # In tuples, so that the same object is equal whatever its `==` says (an array's says no truth value).
    return (value,) == (seen,) or (type(seen) is tuple and _parts(value) == seen)


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
