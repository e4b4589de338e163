"""Refuses tracers that a function hides in an object that it returns and that is no pytree.

A value that is no array (a string, a function, an object of a class that is no pytree) leaves a transform as it is. JAX
does not look into it, so that a tracer in it escaped, and failed far away, wherever the program used it next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jax.core import Tracer
from weft.core.edge._tracers import is_of_running_trace
from weft.core.errors import TraceLevelError
from weft.core.makeup import hidden_in


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
        for place, tracer in hidden_in(value, lambda part: isinstance(part, Tracer))
        if is_of_running_trace(tracer)
    ]
    if hidden:
        raise TraceLevelError(
            f"the function returned a value of type {hidden[0][0]}, which is no pytree, with traced arrays in it",
            at=[place for _, place in hidden],
            fix="return the arrays themselves, or make the class a pytree: derive it from "
            f"{layer}.Module, or register it with JAX",
        )
