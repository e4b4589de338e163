"""error_if and checkify: errors that depend on values, raised in eager and compiled code alike, or returned."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast, overload

import equinox as eqx
from jax.core import Tracer
from jax.experimental import checkify as jax_checkify
from weft.core.edge import names
from weft.core.edge.trees import flatten
from weft.core.edge.untyped import INLINED, jax, jnp
from weft.core.errors import CheckError, exceptions
from weft.core.interpreter.rules import Lift, Lifted, Rule
from weft.core.records.leaves import is_array
from weft.transforms.transformed import decorate, over_values, transform

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def error_if(x: T, condition: Any, message: str | Exception | type[Exception]) -> T:
    """Returns `x`, or raises an error if a condition on values holds: under `jit`, `vmap`, `scan` and `grad` too.

    A compiled program makes the check when it computes the returned arrays, so the result has to be used:
    `x = weft.error_if(x, x < 0, "x is negative")`. The check costs a branch; only if the condition holds it calls back
    to Python.

    Args:
        x: any tree with arrays, to which the check is tied.
        condition: booleans of any shape; the error is raised if one of them is true.
        message: the text of the error, or an exception to raise (an object or a class). A compiled program holds its
            class's name and its text, so of two exceptions that are alike in both the later one is raised.

    Raises:
        CheckError: if the condition holds, or the exception that is given. In a program that plain `jax.jit` has
            compiled, JAX raises a `JaxRuntimeError` with the text. As with equinox, the variable `EQX_ON_ERROR` of the
            environment may say `breakpoint`, `nan` or `off`.

    >>> import jax.numpy as jnp
    >>> import weft
    >>> from weft import jit
    >>> root = jit(lambda x: jnp.sqrt(error_if(x, x < 0, "no root of a negative number")))
    >>> root(4.0).item()
    2.0
    >>> try:
    ...     root(-1.0)
    ... except weft.errors.CheckError as error:
    ...     print(error)
    no root of a negative number

    Source: `equinox.error_if`.
    """
    own = message() if isinstance(message, type) else message
    if not isinstance(condition, Tracer):
        # A condition on static numbers is known inside of a trace too (`eqx.filter_jit` passes Python numbers as they
        # are), but there `jnp.any` of a constant returns a tracer.
        with jax.ensure_compile_time_eval():
            failed = bool(jnp.any(condition))
        if failed:
            raise CheckError(own) if isinstance(own, str) else own.with_traceback(None)
        return x
    leaves, structure = flatten(x)
    places = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
    if not places:
        raise TypeError(f"weft.error_if ties its check to the arrays of x, and there is none in {type(x).__name__}")
    text = own if isinstance(own, str) else f"{type(own).__qualname__}: {own}".strip()
    if not isinstance(own, str):
        exceptions[text] = own
    checked = _checked([leaves[i] for i in places], condition, message=names.OF_ERROR_IF + text)
    for i, leaf in zip(places, checked, strict=True):
        leaves[i] = leaf
    return structure.unflatten(leaves)


# Compiled, because in eager code under `vmap` or `grad` equinox's error has another form, which `explain` does not
# know.
@functools.partial(jax.jit, static_argnames="message", inline=INLINED)
def _checked(arrays: list[Any], condition: Any, *, message: str) -> list[Any]:
    return cast(Any, eqx).error_if(arrays, condition, message)


# --- checkify ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckifyOptions:
    """The options of one `checkify`."""

    errors: frozenset[Any]


def _lift_checkify(lift: Lift[CheckifyOptions]) -> Lifted:
    checked = jax_checkify.checkify(lift.bodies[0], errors=lift.options.errors)

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        error, everything = checked(groups)
        return *everything, error

    return lifted


CHECKIFY: Rule[CheckifyOptions] = Rule("checkify", _lift_checkify, finish=lambda out, finish: (finish.more[0], out))


@overload
def checkify(function: Callable[P, R], /, *, errors: Any = jax_checkify.user_checks) -> Callable[P, tuple[Any, R]]: ...
@overload
def checkify(*, errors: Any = jax_checkify.user_checks) -> Callable[[Callable[P, R]], Callable[P, tuple[Any, R]]]: ...
@transform("errors")
def checkify(function: Callable[..., Any] | None = None, /, *, errors: Any = jax_checkify.user_checks) -> Any:
    """Makes the checks inside a function part of its output.

    Args:
        function: a function that calls `jax.experimental.checkify.check`.
        errors: the checks to make, as in `jax.experimental.checkify` (`user_checks`, `float_checks`, ...).

    Returns:
        A function that returns `(error, output)`; `error.throw()` raises the error of a check that failed.

    Source: `jax.experimental.checkify.checkify`.

    >>> import jax.numpy as jnp
    >>> divide = checkify(lambda m: m["x"] / 0, errors=jax_checkify.float_checks)
    >>> error, y = divide({"x": jnp.array(1.0), "name": "m"})
    >>> error.get().startswith("division by zero")
    True
    """
    options = CheckifyOptions(frozenset(errors))
    return decorate(function, over_values(CHECKIFY, options), CHECKIFY, options)
