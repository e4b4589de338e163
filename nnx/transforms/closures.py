"""What a function closes over: whether a trace of it may be kept, or has to be made again, as objects may have changed.

JAX keeps the trace of a loop's body with the body. What the body closes over is a constant of that trace, so a Variable
that is written later would have its old value there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import jax
import numpy as np
from weft.core.closures import closed_over, globals_read

_CONSTANT = (
    ModuleType, type, BuiltinFunctionType, str, bytes, bool, int, float, complex, type(None), type(...), np.dtype,
    np.ufunc, type(jax.jit(lambda: None)),
)  # fmt: skip


def closes_over_state(function: Callable[..., Any]) -> bool:
    """Whether a function may reach objects or arrays that are not its arguments, as far as its own module goes.

    >>> import jax.numpy as jnp
    >>> table = jnp.ones(2)
    >>> closes_over_state(lambda x: x + table), closes_over_state(lambda x: jnp.tanh(x) + 1)
    (True, False)
    """
    return not _is_constant(function, set())


def _is_constant(value: Any, met: set[int]) -> bool:
    if id(value) in met or isinstance(value, _CONSTANT):
        return True
    met.add(id(value))
    if isinstance(value, functools.partial):
        return all(_is_constant(part, met) for part in (value.func, value.args, *value.keywords.values()))
    if type(value) in (tuple, frozenset):
        return all(_is_constant(part, met) for part in value)
    return isinstance(value, FunctionType) and all(_is_constant(part, met) for part in _reached(value))


def _reached(function: FunctionType) -> Iterator[Any]:
    """What a function's own text and closure name."""
    yield from closed_over(function).values()
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for found in globals_read(function).values():
        # Functions of other modules are a library's, which keeps no state of this program's.
        if not isinstance(found, FunctionType) or found.__globals__ is function.__globals__:
            yield found
