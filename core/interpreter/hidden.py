"""Tracers that a function hides in what it returns: they would be dead outside, and nobody would say so.

What a function returns beside arrays (a text, a function, an object of a class that is no pytree) crosses as it is. JAX
never looks into it, so an array of the trace in it came out as a tracer that fails wherever it is used next.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from weft.core.edge._tracers import is_of_running_trace
from weft.core.errors import TraceLevelError
from weft.core.makeup import Makeup, fold, makeup_of

# What cannot hold a tracer, or is not the function's own.
_CLOSED = (str, bytes, int, float, complex, type(None), type, enum.Enum, ModuleType, jax.Array, np.ndarray, np.dtype)
# An object, what it holds, and what is in that, or in the arguments of a partial application there: deeper ones are
# mostly somebody else's.
_DEEPEST = 4


def refuse_hidden_tracers(returned: Iterable[tuple[str, Any]], layer: str) -> None:
    """Refuses what a function returns as it is, if it hides arrays of the trace that ends.

    Args:
        returned: values, with where they are in the output.
        layer: the package whose transform the user called.

    Raises:
        TraceLevelError: naming the places.
    """
    found = [
        (type(value).__name__, f"{path}{place}: {tracer.aval}")
        for path, value in returned
        for place, tracer in _tracers_in(value)
        if is_of_running_trace(tracer)
    ]
    if found:
        raise TraceLevelError(
            f"the function returned a value of type {found[0][0]}, which is no pytree, with arrays of the trace in it",
            at=[place for _, place in found],
            fix="return the arrays themselves, or make the class a pytree: derive it from "
            f"{layer}.Module, or register it with JAX",
        )


def _tracers_in(value: Any) -> list[tuple[str, Tracer[Any]]]:
    return fold(value, _look, _collect, lambda level: [], deepest=_DEEPEST)


def _look(value: Any) -> Makeup | list[tuple[str, Tracer[Any]]]:
    if isinstance(value, Tracer):
        return [("", value)]
    return [] if isinstance(value, _CLOSED) else makeup_of(value, compared=False)


def _collect(value: Any, makeup: Makeup, parts: list[list[tuple[str, Tracer[Any]]]]) -> list[tuple[str, Tracer[Any]]]:
    named = zip(makeup.names, parts, strict=True)
    return [(_place(value, makeup, name) + rest, tracer) for name, found in named for rest, tracer in found]


def _place(value: Any, makeup: Makeup, name: Any) -> str:
    """A part as one would write it."""
    if makeup.sort in ("mapping", "sequence", "set"):
        return f"[{name!r}]"
    is_cell = makeup.sort == "function" and name in value.__code__.co_freevars
    return f" closes over {name}" if is_cell else f".{name}"
