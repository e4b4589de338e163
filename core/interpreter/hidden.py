"""Tracers that a function hides in what it returns: they would be dead outside, and nobody would say so.

What a function returns beside arrays (a text, a function, an object of a class that is no pytree) crosses as it is. JAX
never looks into it, so an array of the trace in it came out as a tracer that fails wherever it is used next.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any, cast

import jax
import numpy as np
from jax.core import Tracer
from weft.core.closures import closed_over
from weft.core.edge._tracers import is_of_running_trace
from weft.core.errors import TraceLevelError

# What cannot hold a tracer, or is not the function's own.
_CLOSED = (str, bytes, int, float, complex, type(None), type, enum.Enum, ModuleType, jax.Array, np.ndarray, np.dtype)
# An object, what it holds, and what is in that: deeper ones are mostly somebody else's.
_DEPTH = 3


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
        for place, tracer in _tracers_in(value, _DEPTH)
        if is_of_running_trace(tracer)
    ]
    if found:
        raise TraceLevelError(
            f"the function returned a value of type {found[0][0]}, which is no pytree, with arrays of the trace in it",
            at=[place for _, place in found],
            fix="return the arrays themselves, or make the class a pytree: derive it from "
            f"{layer}.Module, or register it with JAX",
        )


def _tracers_in(value: Any, depth: int) -> Iterator[tuple[str, Tracer[Any]]]:
    if isinstance(value, Tracer):
        yield "", value
    elif depth and not isinstance(value, _CLOSED):
        for place, inner in _inside(value):
            for rest, tracer in _tracers_in(inner, depth - 1):
                yield place + rest, tracer


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value holds, with how one would write it."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", inner) for key, inner in cast("Mapping[Any, Any]", value).items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{i}]", inner) for i, inner in enumerate(cast("Iterable[Any]", value)))
    elif isinstance(value, FunctionType):
        yield from ((f" closes over {name}", inner) for name, inner in closed_over(value).items())
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((f".args[{i}]", inner) for i, inner in enumerate(value.args))
        yield from ((f".keywords[{name!r}]", inner) for name, inner in value.keywords.items())
    else:
        slots = [name for cls in type(value).__mro__ for name in vars(cls).get("__slots__", ()) if name[:2] != "__"]
        yield from ((f".{name}", getattr(value, name, None)) for name in slots)
        yield from ((f".{name}", inner) for name, inner in getattr(value, "__dict__", {}).items())
