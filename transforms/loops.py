"""while_loop and fori_loop: a function of a carry, repeated.

Each loop is staged by an inlined `jax.jit`: it leaves no call in a trace around it, and a loop that is called again
from Python is a cache hit.

`lax.while_loop` has no reverse mode, since the number of carries to store is unknown. With a bound (`max_steps`) the
loop is a tree: up to 16 steps are a scan, up to 16 of these scans are a scan again, and so on. Each node is
rematerialised, so the backward pass stores 16 carries of each level, and runs each step once more for each level: a
loop of 4,096 steps stores 48 carries. A node runs under a `cond` on whether the loop continues, so nodes after its end
cost next to nothing.

Under `vmap` there is a condition for each element. A batched `cond` would run all nodes up to the bound, so the nodes
test whether *any* element continues, and only the step itself selects by element.

Values that a step of a bounded loop sows are stacked, as by a scan: with an axis for each level, and zeros for steps
that did not run.

Source of the bounded loop: recursive checkpointing, Griewank, "Achieving logarithmic growth of temporal and spatial
complexity in reverse automatic differentiation", 1992.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from jax.custom_batching import custom_vmap as _custom_vmap
from weft.core.edge.untyped import jax, jnp, lax
from weft.core.errors import CarryError
from weft.core.interpreter.boundary import Groups
from weft.core.interpreter.rides import CARRIED, Carry, Ride, Role, read_role, read_step
from weft.core.interpreter.rules import Body, Exit, Lift, Lifted, OutcomeNode, Rule
from weft.core.tracebacks import cutting
from weft.transforms.arguments import check_scalar
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
            memory grows with the logarithm of this number.

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


# --- loops of bounded length ------------------------------------------------------------------------------------------

BRANCHES = 16

custom_vmap: Any = _custom_vmap

# Whether the loop continues, the number of steps so far, and the carry.
State = tuple[Any, Any, Any]


@custom_vmap
def _any_of(goes_on: Any) -> Any:
    """Whether any element of all batches continues: under `vmap` a scalar without batch axes."""
    return goes_on


@_any_of.def_vmap
def _any_of_batch(size: int, batched: Any, goes_on: Any) -> tuple[Any, bool]:
    return _any_of(jnp.any(goes_on)), False


@custom_vmap
def _of_element(goes_on: Any) -> Any:
    """Whether this element continues, in a step that runs because some element does: True without `vmap`."""
    return jnp.ones((), bool)


@_of_element.def_vmap
def _of_element_of_batch(size: int, batched: Any, goes_on: Any) -> tuple[Any, bool]:
    return goes_on, True


def bounded_while(goes_on: Callable[[Any], Any], body: Callable[[Any], Any], init: Any, max_steps: int) -> Any:
    """`lax.while_loop(goes_on, body, init)` with at most `max_steps` steps.

    >>> import jax.numpy as jnp
    >>> jax.grad(lambda x: bounded_while(lambda c: c < 10, lambda c: c * c, x, 8))(3.0).item()
    108.0
    """
    init = _widened(goes_on, body, init)

    def step(state: State) -> State:
        active, count = _of_element(state[0]), state[1] + 1
        # For an element that has ended the body gets the first carry. At the last carry it may divide by zero, and the
        # derivative of `where` by the branch that it does not select is then NaN, not zero.
        new = _choose(active, body(_choose(active, state[2], init)), state[2])
        return active & goes_on(new) & (count < max_steps), count, new

    # As few levels as 16 branches allow, since each level runs every step once more; then as few branches as that many
    # levels need.
    levels = next(levels for levels in range(1, 64) if BRANCHES**levels >= max_steps)
    branches = next(branches for branches in range(1, BRANCHES + 1) if branches**levels >= max_steps)
    run = step
    for _ in range(levels):
        run = _repeated(run, branches)
    return run((jnp.asarray(goes_on(init)), jnp.zeros((), jnp.int32), init))[2]


def _widened(goes_on: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    """The first carry with Python numbers in the dtypes of the next carry, as `lax.while_loop` converts them."""
    if not any(jax.typeof(leaf).weak_type for leaf in jax.tree.leaves(init)):
        return init

    def widened(leaf: Any, type: Any) -> Any:
        # A leaf whose dtype stays keeps its weak type.
        return leaf if leaf.dtype == type.dtype else lax.convert_element_type(leaf, type.dtype)

    return jax.tree.map(widened, init, jax.eval_shape(functools.partial(lax.while_loop, goes_on, body), init))


def _repeated(run: Callable[[State], State], times: int) -> Callable[[State], State]:
    """Runs a function `times` times, rematerialised, but not after the loop has ended."""
    # Inside of a scan XLA cannot merge the recomputation with the forward pass, so `prevent_cse` is not needed.
    run = jax.checkpoint(run, prevent_cse=False)

    def unchanged(state: State) -> State:
        return state

    def run_if(state: State, _: None) -> tuple[State, None]:
        return lax.cond(_any_of(state[0]), run, unchanged, state), None

    def repeated(state: State) -> State:
        return lax.scan(run_if, state, None, length=times)[0]

    return repeated


def _choose(active: Any, new: Any, old: Any) -> Any:
    return jax.tree.map(functools.partial(jnp.where, active), new, old)
