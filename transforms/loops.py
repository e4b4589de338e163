"""while_loop and fori_loop: a function of a carry, repeated.

Each loop is staged: inside another trace that disappears, and a loop called again from Python is not compiled again. A
`while_loop` of bounded length has a reverse mode (`bounded.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from weft.core.edge.untyped import jnp, lax
from weft.core.errors import CarryError
from weft.core.interpreter.boundary import Groups
from weft.core.interpreter.rides import CARRIED, Carry, Ride, Role, read_role, read_step
from weft.core.interpreter.rules import Lift, Lifted, OutcomeNode, Rule
from weft.core.tracebacks import cutting
from weft.transforms._wrap import call_over_values, check_scalar
from weft.transforms.bounded import bounded_while
from weft.transforms.carries import carrying_along, rule_of_a_carry, values_at, with_values


@dataclass(frozen=True)
class WhileOptions:
    """The options of one `while_loop`."""

    max_steps: int | None = None


PREDICATE = Role("predicate")


def _read(node: Any) -> Ride | None:
    return read_role(node) or read_step(node)


def _lift_while(lift: Lift[WhileOptions]) -> Lifted:
    condition, body = lift.bodies
    carry, predicate = lift.out_lanes.index(CARRIED), lift.out_lanes.index(PREDICATE)

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        outcomes: list[OutcomeNode] = []
        run, places = carrying_along(body, groups)
        # What changes in a carry is the carry; what it would change beside it would be lost.
        ask = condition.departing(updated=frozenset[int]()) if lift.update_lanes else condition

        def go_on(carried: Any) -> Any:
            out, _, _ = ask(_with_carry(*carried))
            if len(out[predicate]) != 1 or jnp.shape(out[predicate][0]) != ():
                shapes = ", ".join(str(jax.typeof(leaf)) for leaf in out[predicate])
                raise CarryError(
                    f"the condition of while_loop must be one boolean scalar, not {shapes or 'no array'}",
                    fix="reduce it (jnp.any, jnp.all)",
                )
            return out[predicate][0]

        def step(carried: Any) -> Any:
            out, updates, outcome = run(_with_carry(*carried))
            outcomes.append(outcome)
            return out[carry], updates

        def _with_carry(carried: Any, beside: Groups) -> Groups:
            # Arrays of a record that is the function are the same at every step, and not part of the carry, but what
            # changes of a threaded one.
            return with_values((carried, *groups[1:]), places, beside[0] if beside else ())

        # The condition is traced for the same crossing, but what it returns is no part of the outcome: the body's is,
        # last traced, for JAX may trace it again where weak types widen.
        most, start = lift.options.max_steps, (groups[0], tuple(values_at(groups, places) for _ in lift.update_lanes))
        if most is None:
            carried, updates = lax.while_loop(go_on, step, start)
        else:
            carried, updates = bounded_while(go_on, step, start, most)
        out: list[tuple[Any, ...]] = [() for _ in lift.out_lanes]
        out[carry] = carried
        return tuple(out), updates, outcomes[-1]

    return lifted


WHILE: Rule[WhileOptions] = rule_of_a_carry(
    "while_loop",
    _lift_while,
    depart=(PREDICATE, Carry),
    read=_read,
)


@cutting
def while_loop(
    cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init: Any, /, *, max_steps: int | None = None
) -> Any:
    """Repeats a function on a carry while a condition holds.

    Args:
        cond_fun: from the carry to one boolean scalar.
        body_fun: from the carry to the next one.
        init: the first carry: any pytree of records; its static leaves must stay as they are.
        max_steps: the most steps that are made, whatever the condition says. With it the loop can be differentiated in
            reverse; its memory grows with the logarithm of this number. See `transforms/bounded.py`.

    Raises:
        CarryError: if the carry changes its make, with each path, before and after; or `max_steps` is no positive int.

    Source: `jax.lax.while_loop`.

    >>> while_loop(lambda c: c["n"] < 10, lambda c: {**c, "n": c["n"] * 2}, {"n": 1, "name": "double"})["n"].item()
    16
    >>> jax.grad(lambda x: while_loop(lambda c: c < 10, lambda c: c * c, x, max_steps=8))(3.0).item()
    108.0
    """
    # Known now, for a bound that is traced is a condition; and not True, which is an int.
    if max_steps is not None and (type(max_steps) is not int or max_steps < 1):
        raise CarryError(
            f"max_steps of while_loop is a positive int, not {max_steps!r}"[:200],
            fix="count steps in the carry, and ask for their number in cond_fun, if the bound is an array",
        )
    return call_over_values(WHILE, (cond_fun, body_fun), WhileOptions(max_steps), init)


@dataclass(frozen=True)
class ForiOptions:
    """The options of one `fori_loop`: bounds that are Python ints, so that JAX can tell the trip count."""

    bounds: tuple[int, int] | None
    unroll: int | bool | None


def _lift_fori(lift: Lift[ForiOptions]) -> Lifted:
    (body,), options = lift.bodies, lift.options
    carry = lift.out_lanes.index(CARRIED)

    def lifted(bounds: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        outcomes: list[OutcomeNode] = []
        # As Python numbers where they are known, since JAX differentiates only a loop whose trip count it can read.
        lower, upper = options.bounds or bounds
        run, places = carrying_along(body, groups, jnp.asarray(lower))

        def step(i: Any, state: Any) -> Any:
            carried, beside = state
            given = with_values((carried, *groups[1:]), places, beside[0] if beside else ())
            out, updates, outcome = run(given, i)
            outcomes.append(outcome)
            return out[carry], updates

        start = (groups[0], tuple(values_at(groups, places) for _ in lift.update_lanes))
        carried, updates = lax.fori_loop(lower, upper, step, start, unroll=options.unroll)
        if not outcomes:  # no iteration, and known not to be one: the carry is what it was, made as it would be
            step(jnp.asarray(lower), start)
        out: list[tuple[Any, ...]] = [() for _ in lift.out_lanes]
        out[carry] = carried
        return tuple(out), updates, outcomes[-1]

    return lifted


def _trips(lift: Lift[ForiOptions], bounds: Any, groups: Groups) -> dict[str, object]:
    known = lift.options.bounds
    return {"length": known[1] - known[0]} if known else {}


FORI: Rule[ForiOptions] = rule_of_a_carry("fori_loop", _lift_fori, frame=_trips)


@cutting
def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init: Any, /, *, unroll: int | bool | None = None
) -> Any:
    """Repeats a function on a carry, for a counter from `lower` up to `upper`.

    Args:
        lower: the first counter, an int or an integer scalar.
        upper: the end, not included. With two Python ints the loop can be differentiated in reverse.
        body_fun: from the counter and the carry to the next carry.
        init: the first carry, as in `while_loop`.
        unroll: as in `jax.lax.fori_loop`.

    Raises:
        CarryError: if the carry changes its make, with each path, before and after.

    Source: `jax.lax.fori_loop`.

    >>> fori_loop(0, 4, lambda i, c: c + i, 0).item()
    6
    """
    options, bounds = fori_options(lower, upper, unroll)
    return call_over_values(FORI, (body_fun,), options, init, extra=bounds)


def fori_options(lower: object, upper: object, unroll: int | bool | None) -> tuple[ForiOptions, tuple[object, ...]]:
    """The options of a `fori_loop`, and its bounds if they may be traced.

    Raises:
        CarryError: for a bound that is no scalar; a counter is carried like the rest.
    """
    # A bool is traced, so that JAX refuses it.
    if isinstance(lower, int) and isinstance(upper, int) and bool not in (type(lower), type(upper)):
        return ForiOptions((lower, upper), unroll), ()
    for bound in (lower, upper):
        check_scalar(bound, "a bound of fori_loop", CarryError, "an int, or one integer")
    return ForiOptions(None, unroll), (lower, upper)
