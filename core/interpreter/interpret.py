"""The interpreter: every transform is one rule, every semantics one boundary, `interpret(rule, boundary)` a function.

One call passes through here in five steps, whatever the rule and whatever the boundary:

1. the boundary takes the call apart into a *structure* and dynamic leaves;
2. the rule says where each leaf rides; leaves that ride alike form a lane, and lanes are all that JAX sees: a flat
   tuple of arrays each. Structure and rides together are the *crossing*: hashable, without arrays, and the key under
   which the lifted function is kept;
3. the lifted function runs: the JAX transform over `Body`, which rebuilds the live call inside the trace, calls the
   user's function, and lets the boundary take its output apart again;
4. what was returned, without its arrays, is the *outcome*; it rides out in the output's tree definition, so JAX's own
   caches keep it with the trace that it belongs to;
5. the boundary hands the output over: *values* build successors, *references* write updates back.

A rule that is dispatched often (`jit`) has a second, generated way through steps 1, 2 and 5 for calls of a make that
was seen before; see `codegen`.
"""

from __future__ import annotations

import functools
import itertools
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import equinox as eqx
from weft.core.caches import Table, register
from weft.core.call_stack import call_with_room
from weft.core.edge.trees import PyTree
from weft.core.edge.untyped import INLINED, jax
from weft.core.frames import open_frame
from weft.core.interpreter.boundary import (
    AnyBoundary,
    AnyCrossing,
    Call,
    Crossing,
    Departure,
    Function,
    Groups,
    QuickWay,
)
from weft.core.interpreter.donations import Donation
from weft.core.interpreter.prefixes import depends_on_leaves, distinct, refuse_by_kind, rides_in
from weft.core.interpreter.retraces import Traces
from weft.core.interpreter.rules import Body, Finish, Lift, Lifted, Prepare, Rule
from weft.core.interpreter.threaded import boundary_of
from weft.core.memory import Recent, remembered
from weft.core.records.aliases import Repeats, repeats_of
from weft.core.records.draws import enter_draws, ledger
from weft.core.records.leaves import Leaf
from weft.core.records.module import method_watchers
from weft.core.tracebacks import cut

O = TypeVar("O")


@dataclass(eq=False)
class Plan:
    """What is kept of a crossing: the lifted function, and how often it was looked up."""

    crossing: AnyCrossing
    lifted: Lifted
    gives_away: bool = False
    donation: Donation | None = None
    uses: int = 0


def as_tree(function: Function) -> Function:
    """A function that is a record's method as a tree that holds the record, whose arrays must not become constants.

    Equinox does so for other methods, but not for `__call__` and its like.
    """
    if isinstance(function, types.MethodType) and isinstance(function.__self__, eqx.Module):
        return jax.tree_util.Partial(function.__func__, function.__self__)
    return function


def name_of(function: Function) -> str:
    """What a function is called in jaxprs and profiles."""
    named: Any = getattr(function, "func", function) if isinstance(function, jax.tree_util.Partial) else function
    return getattr(named, "__name__", type(named).__name__)


def _repeats(leaves: Sequence[object], values: Sequence[PyTree]) -> Repeats:
    """Which leaves of records are one array. An object's come first, and may be: objects are shared, not arrays."""
    start = next((i for i, leaf in enumerate(leaves) if isinstance(leaf, Leaf)), len(leaves))
    repeats = repeats_of(values[start:])
    return (*range(start), *(start + place for place in repeats)) if repeats else ()


def _first_of(functions: Sequence[Function], place: int) -> int:
    """The first place of the function at a place. Records count as other ones: a plan serves those of one structure."""
    function = functions[place]
    if not isinstance(function, types.FunctionType):
        return place
    return next(i for i, earlier in enumerate(functions) if earlier is function)


# How many makes of call are tried by the generated way before the structure is looked up. More would cost
# a call of the last one more than looking it up does.
QUICK_PLANS = 4


@dataclass(eq=False)
class Memory:
    """What was learned of functions under one rule, boundary and options.

    Plans are keyed by crossing: tree definition, static leaves and rides. They hold no arrays and are never stale,
    because a crossing that differs in any of these is another key.
    """

    plans: Recent[AnyCrossing, Plan] = field(default_factory=lambda: Recent[AnyCrossing, Plan]())
    quick: tuple[tuple[Plan, QuickWay], ...] = ()
    traces: Traces = field(default_factory=lambda: Traces())

    def __post_init__(self) -> None:
        _memories.add(self)

    def clear(self) -> None:
        """Forgets the plans; what JAX has compiled for them goes too, as nothing else holds the lifted functions."""
        self.quick = ()
        self.plans.clear()


# Weakly: a memory ends with its functions, and is listed here to be counted and cleared alone.
_memories: weakref.WeakSet[Memory] = weakref.WeakSet()


def _clear_memories() -> None:
    for memory in list(_memories):
        memory.clear()


register(
    Table(
        "weft.core.interpreter.interpret",
        "crossing, for each function that is alive",
        None,
        lambda: sum(len(memory.plans) for memory in list(_memories)),
        _clear_memories,
    )
)


class Interpreted(Generic[O]):
    """Functions under one rule and one boundary, with what is remembered of the calls that they have seen."""

    def __init__(self, rule: Rule[O], boundary: AnyBoundary, functions: tuple[Function, ...], options: O):
        boundary, functions = boundary_of(boundary, functions, rule.name)
        for option in rule.options:
            refuse_by_kind(getattr(options, option, None), option, least=2)
        self.rule = rule
        self.boundary = boundary
        self.options = options
        # Held here, because what stands for them in a crossing does not.
        self.held = tuple(map(as_tree, functions))
        found = remembered(rule, self.held, options, Memory) if boundary.shares else None
        self.functions, self.memory = (self.held, Memory()) if found is None else found
        self.memory.traces.code = getattr(functions[0], "__code__", None)

    def __reduce__(self) -> tuple[object, ...]:
        # Not what is remembered: that is about this process.
        return Interpreted, (self.rule, self.boundary, self.held, self.options)

    def __call__(
        self, args: PyTree, kwargs: Mapping[str, PyTree], *, extra: PyTree = (), prepare: Prepare | None = None
    ) -> PyTree:
        """Calls the transformed functions.

        Args:
            args: the user's positional arguments.
            kwargs: the user's arguments by name.
            extra: what the transform takes beside them (a predicate, a trip count).
            prepare: makes `extra` from the crossing, where it depends on it (tangents).
        """
        __tracebackhide__ = True
        try:
            call = (self.functions, args, kwargs)
            guard = (guards.get() or guards_of_process[-1]) if method_watchers else None
            # What is below has no closure: variables that one shares cost more at each call than the call of it.
            for plan, quick in self.memory.quick:
                found = quick.extract(call)
                if found is not None:
                    guarded = plan if guard is None else guard(self, plan)
                    out = self._run_quickly(guarded, quick, call, found)
                    # Under `debug_keys` what a program draws is entered at each call of it.
                    if method_watchers and ledger() is not None:
                        enter_draws(plan.crossing.draws, found[1])
                    return out
            return self._call(call, extra, prepare, guard)
        except Exception as error:
            cut(error)
            raise

    def _call(self, call: Call, extra: PyTree, prepare: Prepare | None, guard: Guard | None = None) -> PyTree:
        """A call of a make that the quick way does not know."""
        __tracebackhide__ = True
        plan, values, entered = self.plan(call)
        if guard is not None:
            plan = guard(self, plan)
        if prepare is not None:
            extra = prepare(self.boundary, plan.crossing, call, values)

        def hand_over(result: tuple[Any, ...]) -> PyTree:
            return self.boundary.hand_over(entered, result[2].value, values, (*result[0], *result[1]))

        out, (_, _, outcome, *more) = self._run(plan, extra, call, plan.crossing.group(values), hand_over)
        if self.rule.runs:
            enter_draws(plan.crossing.draws, values)
        if self.rule.finish is None:
            return out
        return self.rule.finish(
            out, Finish(self.boundary, plan.crossing, self.options, call, values, outcome.value, tuple(more))
        )

    def plan(self, call: Call) -> tuple[Plan, list[PyTree], object]:
        """The plan of a call, made if need be; the call's dynamic leaves; and what `hand_over` needs of it."""
        structure, leaves, entered = self.boundary.enter(call)
        prefix = self.rule.arrive(self.options, call)
        read = self.rule.read
        rides = self.boundary.rides(prefix, call, entered, leaves, read, self.rule.options[0])
        # At each call that comes this way, and not once for a plan: a crossing knows no shapes, so calls of one plan
        # may be mapped over axes of other sizes.
        self.rule.check(self.options, call, leaves, rides)
        # What is new in an argument may leave by an axis that nothing arrived by.
        new = [ride for ride in rides_in(prefix, read) if ride.takes_new] if self.boundary.restructures else ()
        # Those of the rule come first, whether anything rides in them or not: its lift takes them by their place.
        lanes = distinct((*self.rule.lanes, *rides, *new))
        values = [leaf.value for leaf in leaves]
        crossing = Crossing(structure, tuple(rides), lanes, _repeats(leaves, values))
        plan = self.memory.plans.get(crossing)
        if plan is None:
            # Where the arguments can be updated, their new values must reach them if the old ones are gone.
            donated = tuple(i for i, lane in enumerate(lanes) if lane.gives_away)
            gives_away = self.boundary.has_updates and bool(donated)
            donation = Donation(name_of(self.held[0]), donated) if donated else None
            plan = Plan(crossing, self._lifted(self.lift_of(crossing)), gives_away, donation)
            plan = self.memory.plans.add(crossing, plan)
        plan.uses += 1
        # The quick way looks at the structure alone.
        # At the second use: a make that is seen once is the common case in tests and notebooks, and code is not written
        # for it. At no later one: what others have pushed out would push them out again, in turn, at each call.
        if self.rule.quick and plan.uses == 2 and not depends_on_leaves(prefix, read):
            quick = self.boundary.quick_way(plan.crossing, entered, call)
            if quick is not None:
                self._promote(plan, quick)
        return plan, values, entered

    def lift_of(self, crossing: AnyCrossing) -> Lift[O]:
        """What the rule lifts for calls of a crossing."""
        rule, boundary, count = self.rule, self.boundary, len(self.functions)
        # Without updates no lanes for them either, so that JAX is not asked for axes of what is never there.
        arrived = crossing.lanes if boundary.has_updates else ()
        updates = distinct(ride.update for ride in arrived if ride.update is not None)
        prefixes = [rule.depart(self.options, i) for i in range(count)]
        lanes = distinct(ride for prefix in prefixes for ride in rides_in(prefix, rule.read))
        arrive = functools.partial(rule.arrive, self.options)
        returns = functools.partial(rule.returns, self.options)
        bodies = tuple(
            Body(
                boundary,
                crossing,
                i,
                Departure(prefixes[i], lanes, updates, rule.read, rule.options[1], arrive),
                name_of(self.held[i]),
                rule.agree(self.options, i),
                returns,
                _first_of(self.held, i),
                rule.traces,
            )
            for i in range(count)
        )
        return Lift(bodies, crossing, self.options, self.memory.traces)

    def _lifted(self, lift: Lift[O]) -> Lifted:
        """What the rule lifts, in its frame, and staged if it says so."""
        rule, lifted = self.rule, self.rule.lift(lift)
        details = rule.frame
        if details is None:
            return lifted
        name = rule.name if rule.called is None else rule.called(self.options)

        def framed(extra: PyTree, *groups: tuple[PyTree, ...]) -> tuple[Any, ...]:
            with open_frame(name, **details(lift, extra, groups)):
                return lifted(extra, *groups)

        if not rule.staged:
            return framed
        # The jaxpr and the profile go by this name. Of several functions the last is the one that does the work: the
        # body of a loop comes after its condition.
        framed.__name__ = framed.__qualname__ = lift.bodies[-1].name
        # Inlined, nothing is left of it in the trace around it; called from Python again, it is found compiled, where a
        # loop of JAX's would meet another closure and compile it anew.
        return jax.jit(framed, inline=INLINED)

    def _run(
        self, plan: Plan, extra: PyTree, call: Call, groups: Groups, hand_over: Callable[[tuple[Any, ...]], PyTree]
    ) -> tuple[PyTree, tuple[Any, ...]]:
        """What was handed over, and what came out of the transform."""
        if not plan.gives_away:
            result = self._guarded(plan, extra, call, groups)
            return hand_over(result), result
        # An interrupt after the call, before its result has a name, would lose what the arguments became: C keeps it.
        came: list[tuple[Any, ...]] = []
        try:
            came.extend(itertools.starmap(plan.lifted, ((extra, *groups),)))
            if plan.donation is not None:
                plan.donation.note(groups)
            return hand_over(came[0]), came[0]
        except BaseException as error:
            if came:
                hand_over(came[0])
            elif isinstance(error, Exception):
                self.explain(error, call, plan.crossing)
            raise

    def _guarded(self, plan: Plan, extra: PyTree, call: Call, groups: Groups) -> tuple[Any, ...]:
        try:
            # The first call traces and lowers.
            out = call_with_room(plan.lifted, extra, *groups) if plan.uses == 1 else plan.lifted(extra, *groups)
        except Exception as error:
            self.explain(error, call, plan.crossing)
            raise
        if plan.donation is not None:
            plan.donation.note(groups)
        return out

    def explain(self, error: Exception, call: Call, crossing: AnyCrossing) -> None:
        """Raises a better error than one of JAX's, where an argument of the call is to blame."""
        # Taken apart once more, and only now: the quick way knows no paths, and most calls need none.
        from weft.core.interpreter.explain import explain

        crossing.name_lanes(error)
        explain(error, lambda: self.boundary.enter(call)[1], self.boundary.layer)

    def _run_quickly(
        self,
        plan: Plan,
        quick: QuickWay,
        call: Call,
        found: tuple[Any, Sequence[PyTree], Groups],
    ) -> PyTree:
        first = self.memory.quick
        # By the crossing: a guarded plan stands for the one that is remembered.
        if not first or first[0][0].crossing is not plan.crossing:  # none, where another thread has cleared the caches
            self._promote(plan, quick)
        if plan.gives_away:
            return self._give_away(plan, quick, call, *found)
        entered, values, groups = found
        # As `_guarded`, without the call of it: a step of few leaves takes as long as ten such calls.
        try:
            out, updates, outcome = plan.lifted((), *groups)
        except Exception as error:
            self.explain(error, call, plan.crossing)
            raise
        if plan.donation is not None:
            plan.donation.note(groups)
        return quick.hand_over(entered, outcome.value, values, (*out, *updates))

    def _give_away(
        self, plan: Plan, quick: QuickWay, call: Call, entered: object, values: Sequence[PyTree], groups: Groups
    ) -> PyTree:
        def hand_over(result: tuple[Any, ...]) -> PyTree:
            return quick.hand_over(entered, result[2].value, values, (*result[0], *result[1]))

        return self._run(plan, (), call, groups, hand_over)[0]

    def _promote(self, plan: Plan, quick: QuickWay) -> None:
        # Replaced as a whole, so that other threads see the old order or the new one.
        others = tuple(other for other in self.memory.quick if other[0] is not plan)
        self.memory.quick = ((plan, quick), *others[: QUICK_PLANS - 1])


# Gives a plan that runs instead of one, for the length of a call: how `debug.nonfinite` looks at what comes out. The
# first are a task's, the second the process's; they are looked for where methods are watched.
Guard = Callable[[Interpreted[Any], Plan], Plan]
guards: ContextVar[Guard | None] = ContextVar("weft_guards", default=None)
guards_of_process: list[Guard | None] = [None]


def interpret(rule: Rule[O], boundary: AnyBoundary) -> Callable[[tuple[Function, ...], O], Interpreted[O]]:
    """Gives a rule one of its semantics. That of parts of threaded records goes by the functions: it is theirs.

    Returns:
        A function from the user's functions and the rule's options to what can be called with arguments.
    """
    return lambda functions, options: Interpreted(rule, boundary, functions, options)
