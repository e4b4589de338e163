"""Code that the public functions of all transforms share: decorators with and without options, static arguments, and
the caches of transforms that take functions and arguments in one call."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import equinox as eqx
from weft.core.constants import constants_of
from weft.core.edge.untyped import jnp
from weft.core.errors import WeftError
from weft.core.interpreter.boundary import AnyBoundary, parameter_names
from weft.core.interpreter.interpret import Interpreted, interpret, name_of
from weft.core.interpreter.rules import Rule
from weft.core.interpreter.values import VALUES
from weft.core.memory import Recent, text_key
from weft.core.records.leaves import refuse_unhashable
from weft.core.records.storage import Static
from weft.core.threads.blocks import Transform
from weft.core.threads.handle import threaded_function
from weft.transforms.transformed import Transformed

P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O")
F = TypeVar("F", bound=Callable[..., Any])


def decorate(function: Callable[..., Any] | None, wrap: Callable[[Callable[..., Any]], Any], *key: object) -> Any:
    """`wrap(function)`, or the decorator `wrap` if no function was given.

    Args:
        function: the user's function, or a part of a threaded record; or None.
        wrap: applies the transform to a function.
        key: the rule and the options, by which transforms of parts are compared; empty if parts have no such transform.

    Raises:
        TypeError: if the function is not callable.
    """

    def transform(function: Callable[..., Any]) -> Any:
        threaded = threaded_function(function)
        if threaded is not None and key:
            return threaded.through(Transform(wrap, key))
        if not callable(function):
            raise TypeError(f"expected a function, got {type(function).__name__}: {function!r}")
        return wrap(function)

    return transform if function is None else transform(function)


def over_values(rule: Rule[O], options: O) -> Callable[[Callable[..., Any]], Any]:
    """The decorator of a rule with its options, over records."""

    return lambda function: Transformed(function, interpret(rule, VALUES)((function,), options))


def call_over_values(
    rule: Rule[O], functions: Sequence[Callable[..., Any]], options: O, *args: Any, extra: Any = ()
) -> Any:
    """Applies a rule to functions and their arguments at once, as `cond` and `while_loop` do."""
    return interpreted_at_once(rule, VALUES, tuple(functions), options)(args, {}, extra=extra)


class _SameAgain(Generic[O]):
    """Interpreted functions that may be used again while their functions read the same constants as at the first
    call."""

    def __init__(self, interpreted: Interpreted[O], functions: tuple[Callable[..., Any], ...], constants: Any):
        self._interpreted, self._functions, self._is_new = interpreted, functions, True
        self.constants = constants

    def __call__(self, args: Any, kwargs: Mapping[str, Any], *, extra: Any = ()) -> Any:
        out = self._interpreted(args, kwargs, extra=extra)
        if self._is_new:
            # Read after the first call: the trace itself may have changed a constant, such as a counter of traces,
            # which must not count as a change later.
            self.constants, self._is_new = tuple(map(constants_of, self._functions)), False
        return out


# For transforms that take functions and arguments in one call (`cond`), by the code and constants of the functions,
# which hold no arrays.
_at_once: Recent[Any, Interpreted[Any]] = Recent(
    256, listed=("weft.transforms._wrap, by text", "rule, mode, options and texts")
)
# The same by the identity of the functions, for functions whose constants may be freed with them, or that change a
# constant while they are traced. The cache holds the functions, but only those that hold no arrays.
_same_again: Recent[Any, _SameAgain[Any]] = Recent(
    64, listed=("weft.transforms._wrap, by identity", "rule, mode, options and functions")
)


def interpreted_at_once(
    rule: Rule[O], boundary: AnyBoundary, functions: tuple[Callable[..., Any], ...], options: O
) -> Interpreted[O] | _SameAgain[O]:
    """The interpreted functions for a transform that takes functions and arguments in one call, from a cache if
    possible.

    `boundary` is part of the cache key, so that there must be one object for each mode.
    """
    key = text_key(rule, boundary, functions, options)
    cached = None if key is None else _at_once.get(key)
    if cached is not None:
        return cached
    # A function that reads values which may change is interpreted anew at each call: a cached trace would have their
    # old values.
    constants = tuple(map(constants_of, functions))
    if None in constants:
        return interpret(rule, boundary)(functions, options)
    by_identity = (rule, boundary, options, tuple(map(id, functions)))
    try:
        again = _same_again.get(by_identity)
    except TypeError:  # an option cannot be hashed
        return interpret(rule, boundary)(functions, options)
    if again is not None and again.constants == constants:
        return again
    interpreted = interpret(rule, boundary)(functions, options)
    if key is not None:
        # Two threads may come here at once; `add` returns the first of the two to both.
        interpreted = _at_once.add(key, interpreted)
    _same_again.forget(by_identity)
    return _same_again.add(by_identity, _SameAgain(interpreted, functions, constants))


def titled(name: str, lifted: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a lifted function the name of the user's function, for jaxprs and profiles; the signature does not
    change."""
    lifted.__name__ = lifted.__qualname__ = name
    return lifted


def with_statics(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    numbers: frozenset[int],
    names: frozenset[str],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Wraps the static arguments of a call into `Static`.

    Raises:
        StaticError: if a static argument cannot be hashed.
    """

    def static(value: Any, name: str | int) -> Any:
        refuse_unhashable(value, lambda: _name_of_argument(function, name), is_argument=True)
        # A record without arrays is static as it is, and compared by the lists and dicts in it, which may be mutated.
        return value if isinstance(value, eqx.Module) else Static(value)

    return (
        tuple(static(value, i) if i in numbers else value for i, value in enumerate(args)),
        {name: static(value, name) if name in names else value for name, value in kwargs.items()},
    )


def _name_of_argument(function: Callable[..., Any], name: str | int) -> str:
    parameters = parameter_names(function)
    return name if isinstance(name, str) else parameters[name] if name < len(parameters) else f"args[{name}]"


def as_tuple(value: int | str | Sequence[Any] | None) -> tuple[Any, ...]:
    """A number or name, a sequence of them, or None, as a tuple."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int | str) else tuple(value)


def by_position(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], reaches: int = 0
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Moves arguments that were passed by name to their positions; adds defaults if there are fewer than `reaches`."""
    # Python itself checks the arguments here, with its usual TypeError.
    bound = inspect.signature(function).bind(*args, **kwargs)
    if len(bound.args) < reaches:
        bound.apply_defaults()
    return bound.args, bound.kwargs


def numbers_and_names(
    function: Callable[..., Any], numbers: int | Sequence[int] | None, names: str | Sequence[str] | None
) -> tuple[frozenset[int], frozenset[str]]:
    """The numbers and the names of arguments that are chosen by either, as in `jax.jit`.

    Raises:
        ValueError: if a name is not a parameter, or a number is out of range.
        TypeError: if a number is no integer.
    """
    chosen, named = {operator.index(number) for number in as_tuple(numbers)}, set(as_tuple(names))
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return frozenset(chosen), frozenset(named)
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any_name = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = named - {p.name for p in parameters}
    if unknown and not takes_any_name:
        raise ValueError(f"{name_of(function)} has no parameter {', '.join(map(repr, sorted(unknown)))}")
    takes_any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if not takes_any_number and any(not -len(positional) <= n < len(positional) for n in chosen):
        raise ValueError(f"argument numbers {sorted(chosen)} are out of range: {name_of(function)} takes {positional}")
    # A call may pass an argument by position or by name, so both sets must contain it.
    chosen = {n if n >= 0 else n + len(positional) for n in chosen}
    named |= {positional[n] for n in chosen if n < len(positional)}
    chosen |= {positional.index(name) for name in named if name in positional}
    return frozenset(chosen), frozenset(named)


def check_scalar(value: object, argument: str, error: type[WeftError], fix: str, *, integer: bool = False) -> None:
    """Refuses an argument of a transform that is no scalar (a predicate, an index, a bound of a loop).

    Args:
        value: the argument.
        argument: its name in the error, with the transform.
        error: the class of the error.
        fix: the fix of the error.
        integer: whether it must be an integer.
    """
    # JAX's dtype of a Python number; NumPy's would be float64.
    dtype = jnp.result_type(value) if isinstance(value, bool | int | float) else getattr(value, "dtype", None)
    shape = getattr(value, "shape", ())
    if dtype is None:
        actual = "None" if value is None else f"{type(value).__name__} {value!r}"[:80]
    elif shape or (integer and not jnp.issubdtype(dtype, jnp.integer)):
        actual = f"{dtype}[{','.join(map(str, shape))}]"
    else:
        return
    raise error(f"{argument} must be {'an integer' if integer else 'a'} scalar, not {actual}", fix=fix)
