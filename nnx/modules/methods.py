"""Wrapping the public methods of Modules for a while, to see their calls: for `tabulate` and `weft.debug`."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# Methods of these are no part of a model's computation.
_NOT_WATCHED = ("weft.nnx.modules.", "weft.nnx.printing.")
# Reentrant, because a block may be entered inside of another by the same thread.
_patching = threading.RLock()


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


@contextlib.contextmanager
def wrapped_methods(
    kinds: Iterable[type], wrap: Callable[[type, str, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """A `with` block in which the methods of some classes are what `wrap(class, name, method)` makes of them."""
    # One at a time, so that each puts back what was there before all of them.
    with _patching:
        # With the class's own entry, which is None for an inherited method: writing that back would copy it into the
        # class, and a later change of the base would not reach it.
        before = [
            (kind, name, vars(kind).get(name), method) for kind in kinds for name, method in methods_of(kind).items()
        ]
        try:
            for kind, name, _, method in before:
                setattr(kind, name, wrap(kind, name, method))
            yield
        finally:
            for kind, name, own, _ in before:
                if own is not None:
                    setattr(kind, name, own)
                elif name in vars(kind):
                    delattr(kind, name)
