"""custom_vjp and custom_jvp: functions of records that bring their own derivative.

The differentiated lane holds the inexact leaves of the arguments that are differentiated; all else (integers, keys, and
the arguments named in `nondiff_argnums`) is closed over, and has no cotangent. User rules see trees: a cotangent or
tangent of an argument has its structure, with `None` at the leaves that have none.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

import jax
import numpy as np
from weft.core.agree import Described, differences
from weft.core.errors import DifferentiationError, StructureError
from weft.core.filters import All, OfValue
from weft.core.frames import open_frame
from weft.core.interpret import Body, Boundary, Call, Crossing, Groups, Lift, Lifted, Rule, interpret
from weft.core.rides import Autodiff, RidesByKind
from weft.core.statics import Static
from weft.core.untyped import is_tuple, jnp
from weft.core.untyped import jax as untyped_jax
from weft.core.values import VALUES
from weft.transforms._wrap import as_tuple, by_position, decorate, named_like, titled

P = ParamSpec("P")
R = TypeVar("R")

DIFFERENTIATED, CLOSED, PRIMAL = Autodiff.DIFFERENTIATED, Autodiff.CLOSED, Autodiff.PRIMAL


class _Residuals(threading.local):
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
        with_updates: whether the backward function is given the cotangents of updates too.
    """

    name: str
    nondiff_argnums: tuple[int, ...]
    rule: Callable[..., Any]
    symbolic_zeros: bool
    residuals: _Residuals = field(default_factory=lambda: _Residuals(), compare=False)
    filters: tuple[tuple[int, Any], ...] = ()
    with_updates: bool = False


class _Inexact(RidesByKind):
    optional = True

    def of_array(self, value: Any) -> Any:
        return DIFFERENTIATED if _is_inexact(value) else CLOSED


def _is_inexact(value: Any) -> bool:
    # A dtype is all that is asked for: under symbolic_zeros JAX wraps each primal.
    return jnp.issubdtype(jnp.result_type(getattr(value, "value", value)), jnp.inexact)


def _rides(filter: Any) -> RidesByKind:
    return _Inexact(((All(filter, OfValue(_is_inexact)), DIFFERENTIATED), (..., CLOSED)))


# The rides on which updates of the arguments leave: as outputs whose cotangents are ignored.
_UPDATES = {DIFFERENTIATED: "updates of differentiated leaves", CLOSED: "updates of the others"}


def _arrive(options: CustomOptions, call: Call) -> Any:
    count = len(call[1])
    nondiff = {n + count if n < 0 else n for n in options.nondiff_argnums}
    filters = dict(options.filters)
    return CLOSED, tuple(CLOSED if i in nondiff else _rides(filters.get(i, ...)) for i in range(count)), CLOSED


def _custom_rule(name: str, lift: Callable[[Lift[CustomOptions]], Lifted]) -> Rule[CustomOptions]:
    return Rule(
        name,
        lift,
        arrive=_arrive,
        depart=lambda options, index: PRIMAL,
        is_ride=lambda node: isinstance(node, Autodiff),
        lanes=(DIFFERENTIATED, CLOSED),
        forwards=None,
        updates=lambda ride: _UPDATES[ride] if isinstance(ride, Autodiff) else ride,
        refused={
            _UPDATES[DIFFERENTIATED]: "an argument that is differentiated cannot be mutated: pass what changes through "
            "an argument that is not (nondiff_argnums)"
        },
        options=("nondiff_argnums", "output"),
    )


def _arguments(body: Body, groups: Groups) -> tuple[Any, ...]:
    """The live positional arguments, for a user's rule."""
    return body.boundary.rebuild(body.crossing, body.crossing.ungroup(groups))[0][1]


def _split(options: CustomOptions, args: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Arguments that are not differentiated, and those that are."""
    nondiff = {n + len(args) if n < 0 else n for n in options.nondiff_argnums}
    return (
        tuple(arg for i, arg in enumerate(args) if i in nondiff),
        tuple(arg for i, arg in enumerate(args) if i not in nondiff),
    )


def _sparse(body: Body, values: Sequence[Any]) -> tuple[Any, ...]:
    """Values of the differentiated lane as trees like the arguments."""
    positions = [i for i, ride in enumerate(body.crossing.rides) if ride is DIFFERENTIATED]
    return body.boundary.sparse_call(body.crossing, dict(zip(positions, values, strict=True)))[1]


def _lift_vjp(lift: Lift[CustomOptions]) -> Lifted:
    (primal_body, forward_body), options = lift.bodies, lift.options
    lane = lift.out_lanes.index(PRIMAL)

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        seen: list[tuple[Static, Described]] = []
        if options.with_updates:
            updated = frozenset(range(len(primal_body.crossing.rides)))
        else:
            updated = primal_body.learn_updates(groups)
        primal_run, forward_run = (body.departing(updated=updated) for body in (primal_body, forward_body))
        boundary = primal_body.boundary

        def primal(*groups: Any) -> Any:
            out, outcome = primal_run(groups)
            _agree_with(options, boundary, seen, outcome, out)
            return out

        def forward(*groups: Any) -> Any:
            out, outcome = forward_run(groups)
            _agree_with(options, boundary, seen, outcome, out)
            # Taken, so that what they hold does not outlive the trace.
            residuals, options.residuals.value = options.residuals.value, None
            structure, leaves = boundary.pack(residuals)
            plain = tuple(tuple(getattr(v, "value", v) for v in group) for group in groups)
            return out, (Static(structure), leaves, plain, outcome)

        def backward(saved: Any, cotangents: Any) -> Any:
            structure, leaves, groups, outcome = saved
            nondiff, _ = _split(options, _arguments(forward_body, groups))
            cotangent = boundary.sparse_output(outcome.value, lane, cotangents[lane])
            if options.with_updates:
                cotangent = (_update_cotangents(options, forward_body, outcome.value, cotangents), cotangent)
            with open_frame("custom_vjp backward"):
                given = options.rule(*nondiff, boundary.unpack(structure.value, leaves), cotangent)
            return _gradients(options, forward_body, groups, given), None

        function = untyped_jax.custom_vjp(titled(primal_body.user_function, primal))
        function.defvjp(forward, backward, symbolic_zeros=options.symbolic_zeros)
        with open_frame("custom_vjp"):
            out = function(*groups)
        return out, seen[0][0]

    return lifted


def _update_cotangents(options: CustomOptions, body: Body, outcome: Any, cotangents: Groups) -> tuple[Any, ...]:
    """The cotangents of the updates, as trees like the arguments that are differentiated."""
    values = {i: cotangents[lane][place] for i, lane, place in body.boundary.places_of_updates(outcome)}
    trees = body.boundary.sparse_call(body.crossing, values)[1]
    return _split(options, trees)[1]


def _only(out: Any, lane: int, lift: Lift[Any]) -> Groups:
    return tuple(tuple(out) if i == lane else () for i in range(len(lift.out_lanes)))


def _agree_with(
    options: CustomOptions, boundary: Boundary, seen: list[tuple[Static, Described]], outcome: Static, out: Groups
) -> None:
    seen.append((outcome, boundary.describe_outcome(outcome.value, out)))
    (first, before), (latest, after) = seen[0], seen[-1]
    if first != latest:
        raise StructureError(
            f"the forward function of {options.name} does not return what the function returns",
            at=differences(before, after, root="output") or ["output"],
            fix="return (output, residuals) with the same output",
        )


def _gradients(options: CustomOptions, body: Body, groups: Groups, given: Any) -> tuple[Any, ...]:
    """What the user's backward function returned, as cotangents of the differentiated lane."""
    args = _arguments(body, groups)
    nondiff = {n + len(args) if n < 0 else n for n in options.nondiff_argnums}
    expected = len(args) - len(nondiff)
    cotangents = tuple(cast("Sequence[Any]", given)) if isinstance(given, tuple | list) else None
    if cotangents is None or len(cotangents) != expected:
        raise DifferentiationError(
            f"the backward function of custom_vjp must return a tuple of {expected} cotangents, one for each "
            f"differentiated argument; it returned {type(cast(Any, given)).__name__}"
            + ("" if cotangents is None else f" of {len(cotangents)}"),
            fix="return one for each, None where it is zero",
        )
    rest = iter(cotangents)
    trees = tuple(None if i in nondiff else next(rest) for i in range(len(args)))
    return _lane_values(body.boundary, body.crossing, trees, groups[0])


def _lane_values(
    boundary: Boundary, crossing: Crossing, trees: tuple[Any, ...], like: Sequence[Any]
) -> tuple[Any, ...]:
    values = boundary.read_sparse(crossing, ((), trees, {}))
    chosen = [value for value, ride in zip(values, crossing.rides, strict=True) if ride is DIFFERENTIATED]
    return tuple(jnp.zeros_like(primal) if value is None else value for value, primal in zip(chosen, like, strict=True))


def _lift_jvp(lift: Lift[CustomOptions]) -> Lifted:
    (body,), options = lift.bodies, lift.options
    lane = lift.out_lanes.index(PRIMAL)

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        outcomes: list[Static] = []

        def primal(*groups: Any) -> Any:
            out, outcome = body(groups)
            outcomes.append(outcome)
            return out[lane]

        def rule(groups: Any, tangents: Any) -> tuple[Any, Any]:
            nondiff, primals = _split(options, _arguments(body, groups))
            _, given = _split(options, _sparse(body, tangents[0]))
            with open_frame("custom_jvp rule"):
                out, tangent = options.rule(*nondiff, primals, given)
            # The rule's primal output crosses as the function's own output does.
            values = body.crossing.ungroup(groups)
            live, memory = body.boundary.rebuild(body.crossing, values)
            out_groups, outcome = body.boundary.leave(body.crossing, values, live, memory, out, body.departure)
            outcomes.append(Static(outcome))
            leaves = body.boundary.read_sparse_output(outcome, lane, tangent)
            return out_groups[lane], tuple(map(_as_tangent, leaves, out_groups[lane]))

        function = untyped_jax.custom_jvp(titled(body.user_function, primal))
        function.defjvp(rule, symbolic_zeros=options.symbolic_zeros)
        with open_frame("custom_jvp"):
            out = function(*groups)
        return _only(out, lane, lift), outcomes[0]

    return lifted


def _as_tangent(tangent: Any, primal: Any) -> Any:
    if jnp.issubdtype(jnp.result_type(primal), jnp.inexact):
        return jnp.zeros_like(primal) if tangent is None else tangent
    return np.zeros(jnp.shape(primal), jax.dtypes.float0)


CUSTOM_VJP = _custom_rule("custom_vjp", _lift_vjp)
CUSTOM_JVP = _custom_rule("custom_jvp", _lift_jvp)


class _Custom(Generic[P, R]):
    """What `custom_vjp` and `custom_jvp` functions share."""

    def __init__(self, function: Callable[P, R], nondiff_argnums: tuple[int, ...]):
        self.function = function
        self.nondiff_argnums = nondiff_argnums
        self._run: Callable[..., Any] | None = None
        named_like(function, self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._run is None:
            raise DifferentiationError(
                f"{getattr(self, '__name__', 'this function')} has no derivative rule yet",
                fix=f"give it one with {self._definer} before it is called",
            )
        return self._run(*by_position(self.function, args, kwargs))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    _definer = "defvjp"


class CustomVjp(_Custom[P, R]):
    """A function with its own reverse-mode rule. Made by `custom_vjp`."""

    def defvjp(
        self, forward: Callable[..., Any], backward: Callable[..., Any], *, symbolic_zeros: bool = False
    ) -> None:
        """Defines the derivative.

        Args:
            forward: takes the function's arguments; returns `(output, residuals)`, any pytrees of records.
            backward: takes the arguments that are not differentiated, the residuals, and the output's cotangent;
                returns a tuple of cotangents, one for each differentiated argument: of the argument's structure (what
                its non-differentiated leaves hold is ignored), or None for zero.
            symbolic_zeros: whether leaves given to `forward` are `CustomVJPPrimal`s and zero cotangents are
                `SymbolicZero`s, as in `jax.custom_vjp`.
        """
        residuals = _Residuals()
        options = CustomOptions("custom_vjp", self.nondiff_argnums, backward, symbolic_zeros, residuals)

        def keeping_residuals(*args: Any, **kwargs: Any) -> Any:
            result = forward(*args, **kwargs)
            if not is_tuple(result) or len(result) != 2:
                raise DifferentiationError(
                    f"the forward function of custom_vjp must return (output, residuals), not {type(result).__name__}",
                    fix="return a tuple of two",
                )
            residuals.value = result[1]
            return result[0]

        functions = (self.function, named_like(forward, keeping_residuals))
        self._run = self._interpret(functions, options)

    def _interpret(self, functions: tuple[Callable[..., Any], ...], options: CustomOptions) -> Callable[..., Any]:
        return interpret(CUSTOM_VJP, VALUES)(functions, options)


class CustomJvp(_Custom[P, R]):
    """A function with its own forward-mode rule. Made by `custom_jvp`."""

    _definer = "defjvp"

    def defjvp(self, rule: Callable[..., Any], *, symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Defines the derivative.

        Args:
            rule: takes the arguments that are not differentiated, a tuple of primals and a tuple of tangents (of the
                primals' structures, `None` at leaves that have none); returns `(output, tangent)`.
            symbolic_zeros: whether zero tangents are `SymbolicZero`s, as in `jax.custom_jvp`.

        Returns:
            The rule, so that this can be used as a decorator.
        """
        options = CustomOptions("custom_jvp", self.nondiff_argnums, rule, symbolic_zeros)
        self._run = interpret(CUSTOM_JVP, VALUES)((self.function,), options)
        return rule

    def defjvps(self, *rules: Callable[..., Any] | None) -> None:
        """Defines the derivative for each differentiated argument on its own: `rule(tangent, output, *primals)`.

        Args:
            rules: one for each differentiated argument, None where the derivative is zero.
        """

        def rule(*args: Any) -> tuple[Any, Any]:
            *nondiff, primals, tangents = args
            count = len(primals) + len(nondiff)
            skipped = {n + count if n < 0 else n for n in self.nondiff_argnums}
            rest, others = iter(primals), iter(nondiff)
            all_args: list[Any] = []
            for i in range(count):
                all_args.append(next(others) if i in skipped else next(rest))
            out: Any = cast(Callable[..., Any], self.function)(*all_args)
            terms = [jvp(t, out, *primals) for jvp, t in zip(rules, tangents, strict=True) if jvp is not None]
            if not terms:
                return out, jax.tree.map(jnp.zeros_like, out)
            return out, jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *terms)

        self.defjvp(rule)


@overload
def custom_vjp(function: Callable[P, R], /, *, nondiff_argnums: int | Sequence[int] = ()) -> CustomVjp[P, R]: ...
@overload
def custom_vjp(*, nondiff_argnums: int | Sequence[int] = ()) -> Callable[[Callable[P, R]], CustomVjp[P, R]]: ...
def custom_vjp(function: Callable[..., Any] | None = None, /, *, nondiff_argnums: int | Sequence[int] = ()) -> Any:
    """A function with its own reverse-mode derivative, given by `defvjp`.

    Args:
        function: of records and arrays.
        nondiff_argnums: arguments that are not differentiated, at all.

    Source: `jax.custom_vjp`.

    >>> import jax.numpy as jnp
    >>> @custom_vjp
    ... def clipped(model, x):
    ...     return model["w"] * x
    >>> clipped.defvjp(lambda m, x: (m["w"] * x, (m, x)), lambda saved, g: ({"w": jnp.clip(g * saved[1], -1, 1)}, None))
    >>> float(jax.grad(clipped)({"w": 2.0}, 5.0)["w"])
    1.0
    """
    return decorate(function, lambda f: CustomVjp(f, as_tuple(nondiff_argnums)))


@overload
def custom_jvp(function: Callable[P, R], /, *, nondiff_argnums: int | Sequence[int] = ()) -> CustomJvp[P, R]: ...
@overload
def custom_jvp(*, nondiff_argnums: int | Sequence[int] = ()) -> Callable[[Callable[P, R]], CustomJvp[P, R]]: ...
def custom_jvp(function: Callable[..., Any] | None = None, /, *, nondiff_argnums: int | Sequence[int] = ()) -> Any:
    """A function with its own forward-mode derivative, given by `defjvp`.

    Args:
        function: of records and arrays.
        nondiff_argnums: arguments that are not differentiated, at all.

    Source: `jax.custom_jvp`.

    >>> import jax.numpy as jnp
    >>> @custom_jvp
    ... def f(model, x):
    ...     return model["w"] * x
    >>> @f.defjvp
    ... def rule(primals, tangents):
    ...     (m, x), (_, dx) = primals, tangents
    ...     return f(m, x), 10.0 * dx
    >>> float(jax.grad(f, argnums=1)({"w": 2.0}, 5.0))
    10.0
    """
    return decorate(function, lambda f: CustomJvp(f, as_tuple(nondiff_argnums)))
