"""Seeing the calls of Modules' public methods for a while: for `tabulate` and `weft.debug`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from weft.core.edge.patches import patched

# Methods of these are no part of a model's computation.
_NOT_WATCHED = ("weft.nnx.modules.", "weft.nnx.printing.")


def methods_of(kind: type) -> dict[str, Callable[..., Any]]:
    """The public methods of a class and its `__call__`, without those of NNX's own bases.

    >>> from weft import nnx
    >>> list(methods_of(nnx.Linear))
    ['__call__']
    """
    methods = {}
    for name in dir(kind):
        function = inspect.getattr_static(kind, name)
        is_public = name == "__call__" or not name.startswith("_")
        if is_public and inspect.isfunction(function) and not (function.__module__ or "").startswith(_NOT_WATCHED):
            methods[name] = function
    return methods


def wrapped_methods(kinds: Iterable[type], run: Callable[..., Any]) -> AbstractContextManager[None]:
    """A `with` block in which `run(name, method, self, *args, **kwargs)` runs the methods of some classes."""
    kinds = frozenset(kinds)
    # In the class that defines it: a class that inherits a method sees it when the base's is changed.
    homes = {(_home(kind, name), name) for kind in kinds for name in methods_of(kind)}

    def called(home: type, name: str, method: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        # A method that `super()` reaches is a part of the call of the derived class's method.
        if type(self) not in kinds or _home(type(self), name) is not home:
            return method(self, *args, **kwargs)
        return run(name, method, self, *args, **kwargs)

    return patched(*((home, name, functools.partial(called, home, name)) for home, name in homes))


def _home(kind: type, name: str) -> type:
    return next(base for base in kind.__mro__ if name in vars(base))
