"""Code that `custom_vjp` and `custom_jvp` share: functions of records with a custom derivative.

The differentiated lane holds the inexact leaves of the differentiated arguments; all other leaves (integers, keys, and
the arguments in `nondiff_argnums`) are closed over, and have no cotangent. The user's rules get trees: a cotangent or
tangent of an argument has the argument's structure, with `None` at the leaves that have none.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, ParamSpec, TypeVar, cast

import jax
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.edge.untyped import jnp
from weft.core.errors import DifferentiationError, MissingRuleError
from weft.core.interpreter.boundary import Arrival, Call, Groups, Outcome
from weft.core.interpreter.prefixes import RidesByKind
from weft.core.interpreter.rides import read_role
from weft.core.interpreter.rules import Body, Lift, Lifted, Rule
from weft.core.paths import format_path
from weft.core.records.filters import All, OfValue
from weft.core.records.leaves import NUMBERS
from weft.core.records.storage import Static, unwrapped
from weft.core.threads.handle import threaded_function
from weft.core.tracebacks import cutting
from weft.transforms.arguments import by_position
from weft.transforms.differentiation import CLOSED, DIFFERENTIATED, PRIMAL
from weft.transforms.transformed import Transformed

P = ParamSpec("P")
R = TypeVar("R")


class Residuals(threading.local):
    """Passes the residuals from the forward function to the code that called it, in each thread separately."""

    value: Any = None


@dataclass(frozen=True)
class CustomOptions:
    """The options of a custom derivative.

    Attributes:
        name: `custom_vjp` or `custom_jvp`.
        nondiff_argnums: the arguments that are not differentiated.
        rule: the user's backward function, or jvp.
        symbolic_zeros: whether the user's rule gets symbolic zeros.
        residuals: holds the forward function's residuals until they are flattened.
        filters: for arguments of which only some leaves are differentiated, a filter for these.
        updates: what becomes of the cotangents of updates: the backward function takes them in a pair with that of the
            output ("all" if every leaf counts as updated, so that each has an output, and with it a cotangent, whether
            it changes or not), they are dropped, or they must be zero.
    """

    name: str
    nondiff_argnums: tuple[int, ...]
    rule: Callable[..., Any]
    symbolic_zeros: bool
    residuals: Residuals = field(default_factory=lambda: Residuals(), compare=False)
    filters: tuple[tuple[int, Any], ...] = ()
    updates: Literal["all", "taken", "dropped", "zero"] = "zero"


class _Inexact(RidesByKind):
    optional = True

    def of_array(self, value: Any) -> Any:
        return DIFFERENTIATED if _is_inexact(value) else CLOSED


def _is_inexact(value: Any) -> bool:
    # Under symbolic_zeros JAX wraps each primal, with the array in `value`. An NNX Variable may hold a tree of arrays.
    leaves = jax.tree.leaves(getattr(value, "value", value))
    return bool(leaves) and all(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact) for leaf in leaves)


def _rides(filter: Any) -> RidesByKind:
    """Of the leaves of an argument that match a filter the inexact ones are differentiated."""
    return _Inexact(((All(filter, OfValue(_is_inexact)), DIFFERENTIATED), (..., CLOSED)))


_INEXACT = _rides(...)


def _arrive(options: CustomOptions, call: Call) -> Arrival:
    count = len(call[1])
    # Arguments passed by name are closed over, and so is the function's own record: JAX's rules count positions.
    nondiff = nondiff_positions(options.nondiff_argnums, count)
    filters = {i: _rides(filter) for i, filter in options.filters}
    return CLOSED, tuple([CLOSED if i in nondiff else filters.get(i, _INEXACT) for i in range(count)]), CLOSED


def custom_rule(name: str, lift: Callable[[Lift[CustomOptions]], Lifted]) -> Rule[CustomOptions]:
    """The rule of either transform, which differ only in their lifts."""
    return Rule(
        name,
        lift,
        arrive=_arrive,
        depart=lambda options, index: PRIMAL,
        read=read_role,
        lanes=(DIFFERENTIATED, CLOSED),
        options=("nondiff_argnums", "output"),
        shares="never",
    )


def arguments(body: Body, groups: Groups) -> tuple[Any, ...]:
    """Builds the live positional arguments, for a user's rule."""
    return tuple(map(unwrapped, body.boundary.rebuild(body.crossing, body.crossing.ungroup(groups))[0][1]))


def nondiff_positions(argnums: Sequence[int], count: int) -> frozenset[int]:
    """The positions of the arguments that are not differentiated, of `count` arguments."""
    return frozenset(n + count if n < 0 else n for n in argnums)


def split_by_argnums(argnums: Sequence[int], args: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Divides arguments into those that are not differentiated, and those that are."""
    nondiff = nondiff_positions(argnums, len(args))
    return (
        tuple(arg for i, arg in enumerate(args) if i in nondiff),
        tuple(arg for i, arg in enumerate(args) if i not in nondiff),
    )


def interleave(argnums: Sequence[int], nondiff: Sequence[Any], rest: Sequence[Any]) -> tuple[Any, ...]:
    """The inverse of `split_by_argnums`."""
    count = len(nondiff) + len(rest)
    positions, others, differentiated = nondiff_positions(argnums, count), iter(nondiff), iter(rest)
    return tuple(next(others) if i in positions else next(differentiated) for i in range(count))


def guarded(body: Body, groups: Groups, name: str) -> Groups:
    """The lanes, changed so that a derivative by a closed-over leaf is an error: the user's rule has none, and it would
    silently be zero."""
    if body.boundary.has_identity:  # in NNX such derivatives are zero, as in flax
        return groups
    values = body.crossing.ungroup(groups)
    for i, (ride, value) in enumerate(zip(body.crossing.rides, values, strict=True)):
        if ride == CLOSED and isinstance(value, Tracer) and jnp.issubdtype(value.dtype, jnp.inexact):
            values[i] = _not_differentiated(name, format_path(body.crossing.structure.path_of(i)))(value)
    return body.crossing.group(values)


def _not_differentiated(name: str, path: str) -> Callable[[Any], Any]:
    """The identity, whose derivative is an error."""

    def refuse(primals: Any, tangents: Any) -> Any:
        if not isinstance(tangents[0], SymbolicZero):
            raise DifferentiationError(
                f"a derivative is needed with respect to an argument that this {name} does not differentiate",
                at=path,
                fix="leave it out of nondiff_argnums and give it a derivative, pass it by position, or pass "
                "jax.lax.stop_gradient of it",
            )
        return primals[0], tangents[0]

    # With symbolic zeros, because under a derivative JAX calls the rule for every traced value: only a tangent that is
    # not zero would be lost.
    def unchanged(value: Any) -> Any:
        return value

    identity: Any = untyped_jax.custom_jvp(unchanged)
    identity.defjvp(refuse, symbolic_zeros=True)
    return identity


def unread(body: Body, outcome: Outcome, updates: Groups) -> Groups:
    """The lanes of updates, changed so that a cotangent of one is an error: no backward function takes it, and the
    derivative through the update would silently be zero."""
    paths = {(lane - len(body.departure.lanes), place): i for i, lane, place in outcome.updates}
    return tuple(
        tuple(_unread(format_path(body.crossing.structure.path_of(paths[j, k])))(value) for k, value in enumerate(lane))
        for j, lane in enumerate(updates)
    )


def _unread(path: str) -> Callable[[Any], Any]:
    """The identity, whose cotangent must be zero. JAX tells zeros apart in all transforms but in a carry of `scan`."""

    def refuse(saved: Any, cotangents: Any) -> Any:
        leaves = jax.tree.leaves(cotangents)
        if not all(isinstance(leaf, SymbolicZero) or leaf.dtype == jax.dtypes.float0 for leaf in leaves):
            raise DifferentiationError(
                "a derivative is needed through the new value of an argument, whose cotangent the backward function of "
                "this custom_vjp does not take",
                at=path,
                fix="return the value from the function, and use the returned one; in NNX the backward function may "
                "take the cotangents in a parameter `updates_g`",
            )
        return (None,)

    def same(value: Any) -> Any:
        return value

    def forward(value: Any) -> Any:
        return untyped_jax.custom_derivatives.custom_vjp_primal_tree_values(value), None

    identity: Any = untyped_jax.custom_vjp(same)
    identity.defvjp(forward, refuse, symbolic_zeros=True)
    return identity


class CustomFunction(Transformed[P, R]):
    """The base class of the functions that `custom_vjp` and `custom_jvp` return."""

    __weft_method__ = False

    def __init__(self, function: Callable[P, R], nondiff_argnums: tuple[int, ...]):
        self.function = threaded_function(function) or function
        self.nondiff_argnums = nondiff_argnums
        super().__init__(cast("Callable[P, R]", self.function))

    @cutting
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._run is None:
            raise MissingRuleError(
                f"{getattr(self, '__name__', 'this function')} has no derivative rule yet",
                fix=f"give it one with {self._definer} before it is called",
            )
        # `nondiff_argnums` and cotangents count positions, so each argument has its own, as in JAX.
        positional, named = by_position(self.function, args, kwargs, sys.maxsize)
        nondiff = nondiff_positions(self.nondiff_argnums, len(positional))
        # As in JAX, a Python number that is not differentiated stays a Python number inside.
        fixed = (
            Static(value) if i in nondiff and type(value) in NUMBERS else value for i, value in enumerate(positional)
        )
        return self._run(tuple(fixed), named)

    _definer = "defvjp"
