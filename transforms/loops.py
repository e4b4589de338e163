"""while_loop and fori_loop: a function of a carry, repeated.

Each loop is staged by an inlined `jax.jit`: it leaves no call in a trace around it, and a loop that is called again
from Python is a cache hit. A `while_loop` of bounded length has a reverse mode (`bounded.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
from weft.core.edge.untyped import jnp, lax
from weft.core.errors import CarryError
from weft.core.interpreter.boundary import Groups
from weft.core.interpreter.rides import CARRIED, Carry, Ride, Role, read_role, read_step
from weft.core.interpreter.rules import Body, Exit, Lift, Lifted, OutcomeNode, Rule
from weft.core.tracebacks import cutting
from weft.transforms.arguments import check_scalar
from weft.transforms.bounded import bounded_while
from weft.transforms.carries import carrying_along, rule_of_a_carry, values_at, with_values
from weft.transforms.transformed import call_over_values


@dataclass(frozen=True)
class WhileOptions:
    """The options of one `while_loop`."""

    max_steps: int | None = None


PREDICATE = Role("predicate")


class _Loop:
    """A loop over a body: its first state, a step from state to state, and the result of the last state.

    A state is the lane of the carry, and the update lanes, of which at most one holds the leaves carried along.
    """

    def __init__(self, lift: Lift[Any], body: Body, groups: Groups, *before: Any):
        self.carry, self.out_lanes, self.groups = lift.out_lanes.index(CARRIED), len(lift.out_lanes), groups
        self.run, self.places = carrying_along(body, groups, *before)
        self.start = (groups[0], tuple(values_at(groups, self.places) for _ in lift.update_lanes))
        self.outcomes: list[OutcomeNode] = []

    def lanes(self, state: tuple[Any, Groups]) -> Groups:
        # The arrays of a record that is the function are the same at every step, and no part of the carry, except for
        # the leaves of a threaded record that change.
        carried, along = state
        return with_values((carried, *self.groups[1:]), self.places, along[0] if along else ())

    def step(self, state: tuple[Any, Groups], *before: Any) -> tuple[Any, Groups]:
        out, updates, outcome = self.run(self.lanes(state), *before)
        self.outcomes.append(outcome)
        return out[self.carry], updates

    def result(self, state: tuple[Any, Groups]) -> Exit:
        # The other lanes are empty: the output of a condition is not part of the result.
        out: list[tuple[Any, ...]] = [() for _ in range(self.out_lanes)]
        out[self.carry], updates = state
        # The last outcome of the body counts, because JAX traces the body again if a weak type of the carry widens.
        return tuple(out), updates, self.outcomes[-1]


def _lift_while(lift: Lift[WhileOptions]) -> Lifted:
    condition, body = lift.bodies
    predicate = lift.out_lanes.index(PREDICATE)

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        loop = _Loop(lift, body, groups)
        # The condition has no update lanes, since JAX drops everything that it returns but the boolean. A record that
        # changes there is refused.
        ask = condition.departing(updated=frozenset[int]()) if lift.update_lanes else condition

        def go_on(carried: Any) -> Any:
            out, _, _ = ask(loop.lanes(carried))
            if len(out[predicate]) != 1 or jnp.shape(out[predicate][0]) != ():
                shapes = ", ".join(str(jax.typeof(leaf)) for leaf in out[predicate])
                raise CarryError(
                    f"the condition of while_loop must be one boolean scalar, not {shapes or 'no array'}",
                    fix="reduce it (jnp.any, jnp.all)",
                )
            return out[predicate][0]

        # The bounded loop costs a `cond` and a rematerialised scan for each level, so it is used only on request.
        if lift.options.max_steps is None:
            return loop.result(lax.while_loop(go_on, loop.step, loop.start))
        return loop.result(bounded_while(go_on, loop.step, loop.start, lift.options.max_steps))

    return lifted


def _read(node: Any) -> Ride | None:
    return read_role(node) or read_step(node)


WHILE: Rule[WhileOptions] = replace(rule_of_a_carry("while_loop", _lift_while, depart=(PREDICATE, Carry)), read=_read)


@cutting
def while_loop(
    cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init: Any, /, *, max_steps: int | None = None
) -> Any:
    """Repeats a function on a carry while a condition holds.

    Args:
        cond_fun: from the carry to one boolean scalar.
        body_fun: from the carry to the next one.
        init: the first carry: any pytree of records; its static leaves must stay the same.
        max_steps: the most steps that run, whatever the condition. With it the loop has a reverse derivative, whose
            memory grows with the logarithm of this number. See `transforms/bounded.py`.

    Raises:
        CarryError: if the structure of the carry changes, with each path, before and after; or `max_steps` is no
            positive int.

    Source: `jax.lax.while_loop`.

    >>> while_loop(lambda c: c["n"] < 10, lambda c: {**c, "n": c["n"] * 2}, {"n": 1, "name": "double"})["n"].item()
    16
    >>> jax.grad(lambda x: while_loop(lambda c: c < 10, lambda c: c * c, x, max_steps=8))(3.0).item()
    108.0
    """
    # A Python int, because the depth of the tree must be known while tracing; and not True, which is an int.
    if max_steps is not None and (type(max_steps) is not int or max_steps < 1):
        raise CarryError(
            f"max_steps of while_loop is a positive int, not {max_steps!r}"[:200],
            fix="if the bound is an array, count the steps in the carry and test their number in cond_fun",
        )
    return call_over_values(WHILE, (cond_fun, body_fun), WhileOptions(max_steps), init)


@dataclass(frozen=True)
class ForiOptions:
    """The options of one `fori_loop`: bounds that are Python ints, so that JAX can tell the trip count."""

    bounds: tuple[int, int] | None
    unroll: int | bool | None


def _lift_fori(lift: Lift[ForiOptions]) -> Lifted:
    (body,), options = lift.bodies, lift.options

    def lifted(bounds: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        # As Python numbers if they are known, because JAX differentiates in reverse only a loop of known length.
        lower, upper = options.bounds or bounds
        loop = _Loop(lift, body, groups, jnp.asarray(lower))

        def step(i: Any, state: tuple[Any, Groups]) -> tuple[Any, Groups]:
            return loop.step(state, i)

        last = lax.fori_loop(lower, upper, step, loop.start, unroll=options.unroll)
        if not loop.outcomes:  # JAX traces no step of a loop of known length 0, but the result needs an outcome
            loop.step(loop.start, jnp.asarray(lower))
        return loop.result(last)

    return lifted


def _trips(lift: Lift[ForiOptions], bounds: Any, groups: Groups) -> dict[str, object]:
    fixed = lift.options.bounds
    return {"length": fixed[1] - fixed[0]} if fixed else {}


FORI: Rule[ForiOptions] = replace(rule_of_a_carry("fori_loop", _lift_fori), frame=_trips)


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
        CarryError: if the structure of the carry changes, with each path, before and after.

    Source: `jax.lax.fori_loop`.

    >>> fori_loop(0, 4, lambda i, c: c + i, 0).item()
    6
    """
    options, bounds = fori_options(lower, upper, unroll)
    return call_over_values(FORI, (body_fun,), options, init, extra=bounds)


def fori_options(lower: object, upper: object, unroll: int | bool | None) -> tuple[ForiOptions, tuple[object, ...]]:
    """The options of a `fori_loop`, and its bounds if they may be traced.

    Raises:
        CarryError: if a bound is no scalar; the counter is part of the carry.
    """
    # A bool is passed on as a traced bound, which JAX refuses.
    if isinstance(lower, int) and isinstance(upper, int) and bool not in (type(lower), type(upper)):
        return ForiOptions((lower, upper), unroll), ()
    for bound in (lower, upper):
        check_scalar(bound, "a bound of fori_loop", CarryError, "an int, or one integer")
    return ForiOptions(None, unroll), (lower, upper)
