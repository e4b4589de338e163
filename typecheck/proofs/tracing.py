"""One trace of a call, on shapes alone."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from weft.core.records.leaves import is_array
from weft.typecheck.arguments.abstract import closed, opened
from weft.typecheck.arguments.builder import Unbuildable

# Of a named axis that a program runs under: a prime, and none that a dim may have.
_AXIS_SIZE = 127


def trace(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    around: Callable[..., Callable[[], None]] = lambda args, kwargs: lambda: None,
    axes: tuple[str, ...] = (),
) -> Any:
    """The jaxpr of a call; only `ShapeDtypeStruct`s are traced, all else is given as it is.

    Args:
        function: what to call.
        args, kwargs: what it is given, with `ShapeDtypeStruct`s for arrays.
        around: gets the arguments inside the trace, and returns what to call when the function has returned: it may
            have changed the objects among them.
        axes: names of axes that it runs under.
    """
    leaves, treedef = jax.tree.flatten(opened((args, dict(kwargs))))
    dynamic = [isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves]

    def run(*arrays: Any) -> list[Any]:
        source = iter(arrays)
        live = [next(source) if traced else leaf for leaf, traced in zip(leaves, dynamic, strict=True)]
        positional, named = closed(treedef.unflatten(live))
        afterwards = around(positional, named)
        out = _ran(function(*positional, **named))
        afterwards()
        return [leaf for leaf in jax.tree.leaves(opened(out)) if is_array(leaf)]

    arrays = [leaf for leaf, traced in zip(leaves, dynamic, strict=True) if traced]
    return jax.make_jaxpr(run, axis_env=[(name, _AXIS_SIZE) for name in axes])(*arrays)


def _ran(result: Any) -> Any:
    """The first values of a generator, which may have no last one; what a coroutine returns, if it awaits nothing."""
    if inspect.isgenerator(result):
        return list(itertools.islice(result, 3))
    if inspect.iscoroutine(result):
        try:
            result.send(None)
        except StopIteration as stop:
            return stop.value
        result.close()
        raise Unbuildable("it awaits what only an event loop can give")
    return result
