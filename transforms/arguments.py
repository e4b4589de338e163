"""Arguments of transformed functions: static ones, those that are chosen by number or name, and scalars."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import equinox as eqx
from weft.core.edge.untyped import jnp
from weft.core.errors import WeftError
from weft.core.interpreter.boundary import parameter_names
from weft.core.interpreter.interpret import name_of
from weft.core.records.leaves import refuse_unhashable
from weft.core.records.storage import Static


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
    """Moves arguments that were passed by name to their positions; adds all defaults if fewer than `reaches` have one.

    Without its default an argument that is left out hides the positions of those after it, which stay passed by name.
    """
    # Python itself checks the arguments here, with its usual TypeError.
    bound = inspect.signature(function).bind(*args, **kwargs)
    if len(bound.args) < reaches:
        bound.apply_defaults()
    return bound.args, bound.kwargs


def by_axes(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], in_axes: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Moves arguments that were passed by name to the positions for which axes are given, and adds defaults there."""
    reaches = len(cast("tuple[Any, ...]", in_axes)) if isinstance(in_axes, tuple) else 0
    return by_position(function, args, kwargs, reaches) if kwargs else (args, kwargs)


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
