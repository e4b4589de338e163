"""Refuses tracers that a function hides in an object that it returns and that is no pytree.

A value that is no array (a string, a function, an object of a class that is no pytree) leaves a transform as it is. JAX
does not look into it, so that a tracer in it escaped, and failed far away, wherever the program used it next.
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

# Types whose values hold no tracer, or that belong to the whole program (a module), not to the function.
_CLOSED = (str, bytes, int, float, complex, type(None), type, enum.Enum, ModuleType, jax.Array, np.ndarray, np.dtype)
# How many levels of an object are searched: enough for a tracer in the arguments of a `partial` in an attribute. What
# lies deeper mostly belongs to other parts of the program.
_DEEPEST = 4


def refuse_hidden_tracers(returned: Iterable[tuple[str, Any]], layer: str) -> None:
    """Refuses static values of a function's output that hide tracers of the trace that ends.

    Args:
        returned: the static values of the output, each with its path.
        layer: the package whose transform the user called.

    Raises:
        TraceLevelError: naming the places.
    """
    hidden = [
        (type(value).__name__, f"{path}{place}: {tracer.aval}")
        for path, value in returned
        for place, tracer in _tracers_in(value)
        if is_of_running_trace(tracer)
    ]
    if hidden:
        raise TraceLevelError(
            f"the function returned a value of type {hidden[0][0]}, which is no pytree, with traced arrays in it",
            at=[place for _, place in hidden],
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
    return [(_place(value, makeup, name) + rest, tracer) for name, below in named for rest, tracer in below]


def _place(value: Any, makeup: Makeup, name: Any) -> str:
    """How a user would write the access to a part: `[0]`, `.name`, ` closes over name`."""
    if makeup.sort in ("mapping", "sequence", "set"):
        return f"[{name!r}]"
    is_cell = makeup.sort == "function" and name in value.__code__.co_freevars
    return f" closes over {name}" if is_cell else f".{name}"
