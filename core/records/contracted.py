"""Contracts of a record's class beside its public methods: properties, operators, static and class methods.

They are not *methods* in the sense of `thread` and `debug_successors`, which see those alone: only annotations are
checked here, where they say more than `int` or `str`.
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
# What an annotation says that names no array, as it is or as a string; a property of these pays nothing.
_PLAIN = {plain for cls in (int, float, bool, str, bytes) for plain in (cls, cls.__name__)} | {None, "None"}


def under_contract(name: str, value: Any) -> Any:
    """What to put in the place of something in a class's body, or None to leave it.

    Args:
        name: what it is called there.
        value: what it is.
    """
    if inspect.isfunction(value):
        return _checked(value) if name in OPERATORS and _says_more(value) else None
    if name.startswith("_"):
        return None
    if isinstance(value, property) and inspect.isfunction(value.fget) and _says_more(value.fget):
        return property(_checked(value.fget), value.fset, value.fdel, value.__doc__)
    if isinstance(value, CachedProperty) and _says_more(value.func):
        return CachedProperty(_checked(value.func), name)
    if isinstance(value, staticmethod | classmethod):
        bound = cast(Any, value)
        inner: Any = bound.__func__
        if inspect.isfunction(inner) and _says_more(inner):
            return type(bound)(_checked(inner))
    return None


def _says_more(function: Callable[..., Any]) -> bool:
    annotations: list[Any] = [*function.__annotations__.values()]
    return any(not isinstance(one, str | type) or one not in _PLAIN for one in annotations if one is not None)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return hooks.call_checked(function, args, kwargs, typed=False)

    return checked
