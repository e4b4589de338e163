"""Stability: which static values a user cannot mutate without a plan's noticing.

Static values are compared by `==`. A value that compares by identity, or is immutable all the way down, is *stable*.
Any other value may be mutated and then equal something else, so each call checks it: by its hash if it has one, else
against a snapshot of everything that its `==` can read. If there is no such snapshot (a list of arrays), the object
with the value is planned again at each call.
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
    """Whether a static value can never be mutated so that it equals something else.

    >>> is_stable(("relu", 3)), is_stable([3]), is_stable(print)
    (True, False, True)
    """
    return fold(value, _look_at_stable, _all_are_stable, again=lambda levels: True)


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


# --- unhashable values ------------------------------------------------------------------------------------------------


def is_watchable(value: Any) -> bool:
    """Whether a snapshot captures an unhashable value completely: all its parts are stable.

    >>> is_watchable({"sizes": [3]}), is_watchable([np.zeros(2)])
    (True, False)
    """
    return fold(value, _look_at_watchable, _all_are_stable, again=lambda levels: True)


def _look_at_watchable(value: Any) -> bool | Makeup:
    return is_stable(value) if has_hash(value) else _inside(value) or False


def _inside(value: Any) -> Makeup | None:
    """The parts of an unhashable value, if its `==` can read nothing else; None for other classes."""
    kind = type(value)
    if isinstance(value, _CONTAINERS):
        return makeup_of(value)
    # `==` of array-like classes returns an array, which has no truth value.
    if not is_all_attributes(kind) or hasattr(kind, "__array__"):
        return None
    return makeup_of(value, compared=is_compared_by_fields(kind))


def snapshot(value: Any) -> Any:
    """Copies an unhashable value: its containers and the objects with attributes in it, not its other leaves.

    Args:
        value: a list, dict, set, dataclass, namespace, ...

    >>> config = {"width": [3]}
    >>> before = snapshot(config)
    >>> config["width"].append(4)
    >>> before == snapshot(config), before == snapshot({"width": [3]})
    (False, True)
    """
    copy = fold(value, _look_at_now, _copy, again=lambda levels: ("again", levels))
    # A value that contains itself or a NaN equals no copy of itself, so its flat parts are compared instead.
    return copy if not is_watchable(value) or (value,) == (copy,) else _parts(value)


def _parts(value: Any) -> Any:
    """The parts of a value as nested tuples, with the class and the names of each part that has parts itself.

    In the place of a value inside of itself is the number of levels between.
    """
    return fold(
        value,
        _look_at_now,
        lambda value, makeup, parts: (type(value), *makeup.names, *parts),
        again=lambda levels: levels,
    )


def _look_at_now(value: Any) -> Any:
    makeup = None if has_hash(value) else _inside(value)
    # A user's `==` may fail on an array in a copy. The object itself is stored then: `==` is not called for identity.
    has_own_eq = makeup is not None and makeup.sort == "object" and not is_compared_by_fields(type(value))
    return value if makeup is None or (has_own_eq and not is_watchable(value)) else makeup


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
    # Without the constructor, which may have side effects; only fields that `==` reads are copied.
    copy = (types.SimpleNamespace if isinstance(value, types.SimpleNamespace) else object).__new__(type(value))
    for name, part in attributes.items():
        object.__setattr__(copy, name, part)
    return copy


def still_is(value: Any, seen: Any) -> bool:
    """Whether a value still equals its snapshot, by its own `==`.

    >>> config = {"width": 3}
    >>> before = snapshot(config)
    >>> config["width"] = 4
    >>> still_is(config, before)
    False
    """
    # Compared as tuples, which find the same object equal without its `==`: that of an array has no truth value.
    return (value,) == (seen,) or (type(seen) is tuple and _parts(value) == seen)


@functools.cache
def is_compared_by_fields(kind: type) -> bool:
    """Whether a class is a dataclass whose `__eq__` was generated, so that it compares exactly the fields.

    >>> @dataclasses.dataclass
    ... class Config:
    ...     width: int
    >>> is_compared_by_fields(Config), is_compared_by_fields(dict)
    (True, False)
    """
    # The file of a generated method is `<string>`, or another text in brackets.
    code = getattr(kind.__eq__, "__code__", None)
    return dataclasses.is_dataclass(kind) and code is not None and code.co_filename.startswith("<")
