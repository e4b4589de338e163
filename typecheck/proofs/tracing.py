"""Tracing a call on shapes alone: its jaxpr, and the reshapes in that which only compiling would refuse."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from weft.core.records.leaves import is_array
from weft.typecheck.arguments.abstract import closed, opened
from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.proofs.axis_lints import frames, nested_jaxprs, shape_of
from weft.typecheck.proofs.whose import is_users

# The size of a named axis that a program runs under: a prime that no dim has.
_AXIS_SIZE = 127
# The beginning of JAX's error when it compiles such a reshape.
REFUSED = "cannot reshape array"


def trace(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    around: Callable[..., Callable[[], None]] = lambda args, kwargs: lambda: None,
    axes: tuple[str, ...] = (),
) -> Any:
    """The jaxpr of a call. `ShapeDtypeStruct`s among the arguments are traced; all other leaves are passed as they are.

    Args:
        function: the function to call.
        args, kwargs: the arguments of the call, with `ShapeDtypeStruct`s for arrays.
        around: is called with the arguments inside the trace, and returns a function that is called when `function` has
            returned, to look at objects among the arguments, which the call may have changed.
        axes: names of axes that it runs under.
    """
    leaves, treedef = jax.tree.flatten(opened((args, dict(kwargs))))
    dynamic = [isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves]

    def run(*arrays: Any) -> list[Any]:
        # Tracers take the places of arrays inside the trace, so that objects are made of them there.
        source = iter(arrays)
        live = [next(source) if traced else leaf for leaf, traced in zip(leaves, dynamic, strict=True)]
        positional, named = closed(treedef.unflatten(live))
        afterwards = around(positional, named)
        out = _ran(function(*positional, **named))
        afterwards()
        # `make_jaxpr` returns arrays only: a function may return a text, or an object.
        return [leaf for leaf in jax.tree.leaves(opened(out)) if is_array(leaf)]

    arrays = [leaf for leaf, traced in zip(leaves, dynamic, strict=True) if traced]
    return jax.make_jaxpr(run, axis_env=[(name, _AXIS_SIZE) for name in axes])(*arrays)


def _ran(result: Any) -> Any:
    """A function's result; of a generator its first values, and of a coroutine the value that it returns."""
    # A generator of batches may never end; three values show whether one differs from those before it.
    if inspect.isgenerator(result):
        return list(itertools.islice(result, 3))
    if inspect.iscoroutine(result):
        try:
            result.send(None)
        except StopIteration as stop:
            return stop.value
        result.close()
        raise Unbuildable("the coroutine awaits something that only an event loop completes")
    return result


def impossible_reshape(closed: Any, own: frozenset[str]) -> tuple[Exception, tuple[str, int]] | None:
    """The error of the first reshape that changes the number of elements, with the user's file and line; or None.

    `jax.lax.reshape` accepts any new shape while tracing, and only compiling fails.

    Args:
        closed: a closed jaxpr.
        own: files that count as the user's.
    """
    for eqn in _reshapes(closed.jaxpr):
        old, new = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
        if math.prod(old) != math.prod(new):
            at = next(((file, line) for file, _, line in frames(eqn) if is_users(file, own)), ("", 0))
            return TypeError(f"{REFUSED} of shape {old} into shape {new}"), at
    return None


def _reshapes(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "reshape":
            yield eqn
        for _, inner in nested_jaxprs(eqn):
            yield from _reshapes(inner)
