"""op: what makes a function a pure op.

An op is a `jax.jit` of its own. A model calls the same few ops many times on the same shapes, and JAX traces,
differentiates, transposes and lowers each of them *once*: a 12-layer transformer is traced and lowered in three
quarters of the time of the same maths written out in `jax.numpy`. XLA inlines the calls, so the compiled program is the
same; in jaxprs and profiles an op goes by its name.

Some options are functions (a product, a promotion). A function of the user's own may have state, as a quantiser does,
and no one knows when it is a new one; so an op that is given one is not traced apart, but runs where it is called.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import jax

P = ParamSpec("P")
R = TypeVar("R")


def op(*static: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a pure function an op.

    Args:
        static: names of the keyword arguments that are options rather than arrays. Lists in them count as tuples.

    >>> import jax.numpy as jnp
    >>> @op("axes")
    ... def total(x, *, axes=(0,)):
    ...     return jnp.sum(x, axes)
    >>> total(jnp.ones((2, 3)), axes=[0, 1]).item()
    6.0
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        traced = cast(Any, jax.jit(function, static_argnames=static))
        parameters = inspect.signature(function).parameters
        defaults = {name: parameters[name].default for name in static}
        # Not `isroutine`, which jitted functions are not; and a missing default is a class, which is callable.
        functions = {name for name, default in defaults.items() if callable(default) and not isinstance(default, type)}

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name, value in kwargs.items():
                if type(value) is list:
                    kwargs[name] = hashable(value)
                elif name in functions and value is not defaults[name]:
                    return function(*args, **kwargs)
            return traced(*args, **kwargs)

        return call

    return decorate


def hashable(value: Any) -> Any:
    """The same value with tuples for lists, at any depth.

    >>> hashable([1, [2, 3]])
    (1, (2, 3))
    """
    return tuple(map(hashable, value)) if isinstance(value, (list, tuple)) else value
