"""Contracts of a record's properties, operators, static and class methods.

`thread` and `debug_successors` watch public methods alone, so these only have their annotations checked, and only if an
annotation names more than `int` or `str`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

from weft.core import hooks
from weft.core.records.cached import CachedProperty

_BINARY = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or"
_OTHERS = ("neg", "pos", "abs", "invert", "getitem", "contains", "iter", "lt", "le", "gt", "ge")
OPERATORS = frozenset(
    [f"__{side}{name}__" for name in _BINARY.split() for side in ("", "r", "i")] + [f"__{name}__" for name in _OTHERS]
)
# Annotations that name no array, as types and as strings. A property that is annotated so is not wrapped, and costs
# nothing.
_PLAIN = {plain for cls in (int, float, bool, str, bytes) for plain in (cls, cls.__name__)} | {None, "None"}


def under_contract(name: str, value: Any) -> Any:
    """An attribute of a class's body with its contract checked, or None if it stays as it is.

    Args:
        name: the name of the attribute.
        value: its value.
    """
    if inspect.isfunction(value):
        return _checked(value) if name in OPERATORS and _may_name_arrays(value) else None
    if name.startswith("_"):
        return None
    if isinstance(value, property) and inspect.isfunction(value.fget) and _may_name_arrays(value.fget):
        return property(_checked(value.fget), value.fset, value.fdel, value.__doc__)
    if isinstance(value, CachedProperty) and _may_name_arrays(value.func):
        return CachedProperty(_checked(value.func), name)
    if isinstance(value, staticmethod | classmethod):
        bound = cast(Any, value)
        inner: Any = bound.__func__
        if inspect.isfunction(inner) and _may_name_arrays(inner):
            return type(bound)(_checked(inner))
    return None


def _may_name_arrays(function: Callable[..., Any]) -> bool:
    annotations: list[Any] = [annotation for annotation in function.__annotations__.values() if annotation is not None]
    return any(not isinstance(annotation, str | type) or annotation not in _PLAIN for annotation in annotations)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return hooks.call_checked(function, args, kwargs, typed=False)

    return checked
