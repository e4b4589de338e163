"""What a function finds outside of itself: what it closes over, and the globals that its text reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any


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
