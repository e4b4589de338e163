"""What `custom_vjp` and `custom_jvp` share: functions of records that bring their own derivative.

The differentiated lane holds the inexact leaves of the arguments that are differentiated; all else (integers, keys, and
the arguments named in `nondiff_argnums`) is closed over, and has no cotangent. User rules see trees: a cotangent or
tangent of an argument has its structure, with `None` at the leaves that have none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar

import jax
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.edge.untyped import jnp
from weft.core.errors import DifferentiationError, MissingRuleError
from weft.core.interpreter.boundary import Arrival, Call, Groups
from weft.core.interpreter.prefixes import RidesByKind
from weft.core.interpreter.rides import Role, read_role
from weft.core.interpreter.rules import Body, Lift, Lifted, Rule
from weft.core.paths import format_path
from weft.core.records.filters import All, OfValue
from weft.core.records.leaves import NUMBERS
from weft.core.records.statics import Static, unwrapped
from weft.core.threads.proxies import threaded_function
from weft.core.tracebacks import cutting
from weft.transforms._wrap import by_position
from weft.transforms.differentiation import CLOSED, PRIMAL
from weft.transforms.transformed import Transformed

P = ParamSpec("P")
R = TypeVar("R")

# Updates leave as outputs of their own, whose cotangents are ignored. That of an argument that is differentiated would
# be lost, unless the backward function takes it (`with_updates`).
_UPDATES = Role(
    "'updates of differentiated leaves'",
    instead="an argument that is differentiated cannot be mutated: pass what changes through an argument that is not "
    "(nondiff_argnums)",
)
DIFFERENTIATED = Role("differentiated", updates_as=_UPDATES)


class Residuals(threading.local):
    """Where a forward function leaves its residuals for the lines after its call, in each thread its own."""

    value: Any = None


@dataclass(frozen=True)
class CustomOptions:
    """What a custom rule consists of.

    Attributes:
        name: `custom_vjp` or `custom_jvp`.
        nondiff_argnums: the arguments that are not differentiated.
        rule: the user's backward function, or jvp.
        symbolic_zeros: whether the user's rule wants to be told of zeros.
        residuals: what the forward function saved, from its call to the flattening of it.
        filters: for arguments that are differentiated in part, which leaves.
        with_updates: whether the backward function is given the cotangents of updates, beside the output's.
        updates_as: the name of the argument that it is given those as, if it takes them by name.
    """

    name: str
    nondiff_argnums: tuple[int, ...]
    rule: Callable[..., Any]
    symbolic_zeros: bool
    residuals: Residuals = field(default_factory=lambda: Residuals(), compare=False)
    filters: tuple[tuple[int, Any], ...] = ()
    with_updates: bool = False
    updates_as: str | None = None


class _Inexact(RidesByKind):
    optional = True

    def of_array(self, value: Any) -> Any:
        return DIFFERENTIATED if _is_inexact(value) else CLOSED


def _is_inexact(value: Any) -> bool:
    # A dtype is all that is asked for: under symbolic_zeros JAX wraps each primal. A graph's Variable may hold a tree.
    leaves = jax.tree.leaves(getattr(value, "value", value))
    return bool(leaves) and all(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact) for leaf in leaves)


def _rides(filter: Any) -> RidesByKind:
    return _Inexact(((All(filter, OfValue(_is_inexact)), DIFFERENTIATED), (..., CLOSED)))


def _arrive(options: CustomOptions, call: Call) -> Arrival:
    count = len(call[1])
    nondiff = nondiff_positions(options.nondiff_argnums, count)
    filters = dict(options.filters)
    return CLOSED, tuple(CLOSED if i in nondiff else _rides(filters.get(i, ...)) for i in range(count)), CLOSED


def custom_rule(name: str, lift: Callable[[Lift[CustomOptions]], Lifted]) -> Rule[CustomOptions]:
    """The rule of either transform: they differ in what they lift alone."""
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


def with_updates(rule: Rule[CustomOptions]) -> Rule[CustomOptions]:
    """The rule for backward functions that take cotangents of updates: what is differentiated may be mutated."""
    updated = replace(DIFFERENTIATED, updates_as=None)

    def read(node: Any) -> Role | None:
        return updated if node == DIFFERENTIATED else read_role(node)

    return replace(rule, read=read, lanes=(updated, CLOSED))


def arguments(body: Body, groups: Groups) -> tuple[Any, ...]:
    """The live positional arguments, for a user's rule."""
    return tuple(map(unwrapped, body.boundary.rebuild(body.crossing, body.crossing.ungroup(groups))[0][1]))


def nondiff_positions(argnums: Sequence[int], count: int) -> frozenset[int]:
    """The positions, among `count` arguments, of those that are not differentiated."""
    return frozenset(n + count if n < 0 else n for n in argnums)


def part(argnums: Sequence[int], args: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Arguments that are not differentiated, and those that are."""
    nondiff = nondiff_positions(argnums, len(args))
    return (
        tuple(arg for i, arg in enumerate(args) if i in nondiff),
        tuple(arg for i, arg in enumerate(args) if i not in nondiff),
    )


def interleave(argnums: Sequence[int], nondiff: Sequence[Any], rest: Sequence[Any]) -> tuple[Any, ...]:
    """The inverse of `part`."""
    count = len(nondiff) + len(rest)
    positions, others, differentiated = nondiff_positions(argnums, count), iter(nondiff), iter(rest)
    return tuple(next(others) if i in positions else next(differentiated) for i in range(count))


def guarded(body: Body, groups: Groups, name: str) -> Groups:
    """The lanes, where a derivative in what is closed over is an error: it would be lost, for the rule has none."""
    if body.boundary.has_identity:  # NNX's rule: parts of an object that are not differentiated have none
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
                f"a derivative is asked for in an argument that this {name} does not differentiate",
                at=path,
                fix="leave it out of nondiff_argnums and give it a derivative, pass it by position, or pass "
                "jax.lax.stop_gradient of it",
            )
        return primals[0], tangents[0]

    def itself(value: Any) -> Any:
        return value

    # With symbolic zeros, because JAX asks for the derivative of everything that is traced under one: only a tangent
    # that is no zero is one that would be lost.
    identity: Any = untyped_jax.custom_jvp(itself)
    identity.defjvp(refuse, symbolic_zeros=True)
    return identity


class CustomFunction(Transformed[P, R]):
    """What `custom_vjp` and `custom_jvp` functions share."""

    __weft_method__ = False

    def __init__(self, function: Callable[P, R], nondiff_argnums: tuple[int, ...]):
        self.function = threaded_function(function) or function
        self.nondiff_argnums = nondiff_argnums
        super().__init__(function)

    @cutting
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._run is None:
            raise MissingRuleError(
                f"{getattr(self, '__name__', 'this function')} has no derivative rule yet",
                fix=f"give it one with {self._definer} before it is called",
            )
        # `nondiff_argnums` counts positions, so that an argument passed by name has to be in its own.
        positional, named = by_position(self.function, args, kwargs)
        nondiff = nondiff_positions(self.nondiff_argnums, len(positional))
        # As in JAX, a number that is not differentiated is a number inside.
        fixed = (
            Static(value) if i in nondiff and type(value) in NUMBERS else value for i, value in enumerate(positional)
        )
        return self._run(tuple(fixed), named)

    _definer = "defvjp"
