"""The interpreter: `interpret(rule, boundary)` gives the public function of one transform for one semantics.

Every call takes the same five steps, whatever the rule and whatever the boundary:

1. the boundary flattens the call into a *structure* and dynamic leaves;
2. the rule says where each leaf rides; leaves that ride alike form a lane, and lanes are all that JAX sees: a flat
   tuple of arrays each. Structure and rides together are the *crossing*: hashable, without arrays, and the key under
   which the lifted function is cached;
3. the lifted function runs: the JAX transform over `Body`, which rebuilds the live call inside the trace, calls the
   user's function, and lets the boundary flatten its output;
4. what the function returned, without its arrays, is the *outcome*; it leaves in the output's treedef, so that JAX's
   own caches store it with the trace that it belongs to;
5. the boundary hands the output over: *values* build successors, *references* write updates back.

For a rule that is dispatched often (`jit`), generated code does steps 1, 2 and 5 for calls of a structure that was seen
before; see `codegen`.
"""

from __future__ import annotations

import functools
import itertools
import operator
import types
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from weft.core.caches import Table, register
from weft.core.donations import Donation
from weft.core.edge.trees import PyTree
from weft.core.edge.untyped import INLINED, jax
from weft.core.frames import call_with_room, open_frame
from weft.core.interpreter.boundary import (
    AnyBoundary,
    AnyCrossing,
    Call,
    Crossing,
    Departure,
    Function,
    Groups,
    HandOver,
    QuickWay,
)
from weft.core.interpreter.prefixes import depends_on_leaves, distinct, refuse_by_kind, rides_in
from weft.core.interpreter.retraces import Traces
from weft.core.interpreter.rules import Body, Finish, Lift, Lifted, Prepare, Rule, no_details
from weft.core.interpreter.threaded import boundary_of
from weft.core.memory import Recent, remembered
from weft.core.records.configuration import as_tree
from weft.core.records.draws import enter_draws, ledger
from weft.core.records.leaves import Leaf, Repeats, repeats_of
from weft.core.records.module import method_watchers
from weft.core.tracebacks import cut

O = TypeVar("O")


@dataclass(eq=False)
class Plan:
    """The lifted function of a crossing, and how often it was looked up.

    Attributes:
        crossing, lifted: the cache key, and the function.
        gives_away: whether arguments are donated whose updates must still be written back.
        donation: remembers what the last call donated; None if nothing is donated.
        generates: whether code is generated for calls of this structure.
        uses: the number of calls that have looked this plan up.
    """

    crossing: AnyCrossing
    lifted: Lifted
    gives_away: bool = False
    donation: Donation | None = None
    generates: bool = False
    uses: int = 0


def name_of(function: Function) -> str:
    """The name of a function in jaxprs and profiles."""
    named: Any = getattr(function, "func", function) if isinstance(function, jax.tree_util.Partial) else function
    return getattr(named, "__name__", type(named).__name__)


def _repeats(leaves: Sequence[object], values: Sequence[PyTree]) -> Repeats:
    """Which leaves of records are the same array. The leaves of NNX objects come first and are left out: objects share
    Variables, and the boundary of references takes care of those."""
    start = next((i for i, leaf in enumerate(leaves) if isinstance(leaf, Leaf)), len(leaves))
    repeats = repeats_of(values[start:])
    return (*range(start), *(start + place for place in repeats)) if repeats else ()


def _first_of(functions: Sequence[Function], place: int) -> int:
    """The index of the first function that is the same as the function at `place`.

    A record that is the function always counts as another one: a plan serves all records of one structure.
    """
    function = functions[place]
    if not isinstance(function, types.FunctionType):
        return place
    return next(i for i, earlier in enumerate(functions) if earlier is function)


# How many extractors a call tries before it is flattened and its plan looked up. With more, the last one tried would
# come later than the lookup.
QUICK_PLANS = 4


@dataclass(eq=False)
class Memory:
    """The plans of functions under one rule, one boundary and one set of options.

    Plans are keyed by crossing: treedef, static leaves and rides. They hold no arrays and are never stale, because a
    crossing that differs in any of these is another key. `known` has the same plans by what tells a crossing without
    the paths, kinds and rides of leaves; see `Boundary.recognise`.
    """

    plans: Recent[AnyCrossing, Plan] = field(default_factory=lambda: Recent[AnyCrossing, Plan]())
    known: Recent[Hashable, Plan] = field(default_factory=lambda: Recent[Hashable, Plan]())
    quick: tuple[tuple[Plan, QuickWay], ...] = ()
    traces: Traces = field(default_factory=lambda: Traces())

    def __post_init__(self) -> None:
        _memories.add(self)

    def clear(self) -> None:
        """Forgets the plans. JAX's compiled programs go with them, because nothing else refers to the lifted
        functions."""
        self.quick = ()
        self.known.clear()
        self.plans.clear()


# Weak references: a memory lives as long as its functions, and is listed here only to be counted and cleared.
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
    """The user's functions under one rule and one boundary, with the plans of the calls so far."""

    def __init__(self, rule: Rule[O], boundary: AnyBoundary, functions: tuple[Function, ...], options: O):
        boundary, functions = boundary_of(boundary, functions, rule.name)
        self.rule = rule
        self.boundary = boundary
        self.options = options
        # Strong references, because the handles that stand for the functions in a crossing are weak.
        self.user_functions = tuple(map(as_tree, functions))
        shares = boundary.shares or rule.retraces
        shared = remembered(rule, boundary, self.user_functions, options, self._new_memory) if shares else None
        self.functions, self.memory = (self.user_functions, self._new_memory()) if shared is None else shared
        self.memory.traces.code = getattr(functions[0], "__code__", None)

    def _new_memory(self) -> Memory:
        # When the transform is made, and not when it is called: the user's line with the wrong prefix is running now.
        for option in self.rule.options:
            refuse_by_kind(getattr(self.options, option, None), option, least=2)
        return Memory()

    def __reduce__(self) -> tuple[object, ...]:
        # Without the memory: its plans refer to compiled programs of this process.
        return Interpreted, (self.rule, self.boundary, self.user_functions, self.options)

    def __call__(
        self,
        args: PyTree,
        kwargs: Mapping[str, PyTree],
        *,
        extra: PyTree = (),
        prepare: Prepare | None = None,
        guard: Guard | None = None,
    ) -> PyTree:
        """Calls the transformed functions.

        Args:
            args: the user's positional arguments.
            kwargs: the user's arguments by name.
            extra: arguments of the transform itself (a predicate, a trip count).
            prepare: makes `extra` from the crossing and the leaves, where it depends on these (tangents).
            guard: the guard of this call; by default that of the thread or the process.
        """
        __tracebackhide__ = True
        try:
            call = (self.functions, args, kwargs)
            if guard is None and method_watchers:
                guard = guards.get() or guards_of_process[-1]
            # No closure in this function: variables that a closure shares with it are slower at every access, which
            # cost a call more than the call of a method does.
            for plan, quick in self.memory.quick:
                extracted = quick.extract(call)
                if extracted is not None:
                    guarded = plan if guard is None else guard(self, plan)
                    out = self._run_quickly(guarded, quick, call, extracted)
                    # `debug_keys` counts the draws of a compiled program at each of its calls, not only when it is
                    # traced, so that it sees a key from which two calls of one program draw.
                    if method_watchers and ledger.get() is not None:
                        enter_draws(plan.crossing.draws, extracted[1])
                    return out
            return self._call(call, extra, prepare, guard)
        except Exception as error:
            cut(error)
            raise

    def _call(self, call: Call, extra: PyTree, prepare: Prepare | None, guard: Guard | None = None) -> PyTree:
        """A call of a structure that has no generated code."""
        __tracebackhide__ = True
        plan, values, entered = self.plan(call)
        if guard is not None:
            plan = guard(self, plan)
        if prepare is not None:
            extra = prepare(self.boundary, plan.crossing, call, values)

        extracted = entered, values, plan.crossing.group(values)
        out, (_, _, outcome, *more) = self._run(plan, self.boundary.hand_over, extra, call, *extracted)
        # After the call, because the first call of a plan traces its function, which is when the draws are noted.
        if method_watchers and ledger.get() is not None and self.rule.runs:
            enter_draws(plan.crossing.draws, values)
        if self.rule.finish is None:
            return out
        return self.rule.finish(
            out, Finish(self.boundary, plan.crossing, self.options, call, values, outcome.value, tuple(more))
        )

    def plan(self, call: Call) -> tuple[Plan, Sequence[PyTree], object]:
        """Looks up the plan of a call, or makes it; also returns the dynamic leaves, and what `hand_over` needs."""
        recognised = self.boundary.recognise(call)
        # None also for a static leaf that cannot be hashed, for which `enter` raises an error that names it.
        plan = None if recognised is None else self.memory.known.find(recognised[0])
        if recognised is None or plan is None:
            plan, values, entered = self._described(call, recognised)
        else:
            _, values, entered = recognised
        plan.uses += 1
        # A structure seen once is the common case in tests and notebooks, so code is generated at the second call. Not
        # at a later one: a program that alternates between more than QUICK_PLANS structures would have generated code
        # for one of them at every call, and each time have thrown another's away.
        if plan.generates and plan.uses == 2:
            quick = self.boundary.quick_way(plan.crossing, entered, call)
            if quick is not None:
                self._promote(plan, quick)
        return plan, values, entered

    def _described(
        self, call: Call, recognised: tuple[Hashable, Sequence[PyTree], object] | None
    ) -> tuple[Plan, Sequence[PyTree], object]:
        """The plan of a call by its crossing, for which all leaves are described; also what `plan` returns with it."""
        key, seen, known = recognised or (None, (), None)
        structure, leaves, entered = self.boundary.enter(call, known)
        prefix = self.rule.arrive(self.options, call)
        read = self.rule.read
        rides = self.boundary.rides(prefix, call, entered, leaves, read, self.rule.options[0])
        # At each call that is not recognised, and not once for a plan: a crossing knows no shapes, so that two calls of
        # one plan may be mapped over axes of different sizes.
        self.rule.check(self.options, call, leaves, rides)
        # An NNX function may put a new Variable into an argument, which leaves on a ride on which no leaf has entered.
        new = [ride for ride in rides_in(prefix, read) if ride.takes_new] if self.boundary.restructures else ()
        # The rule's own lanes come first, even if they are empty: its lift takes them by their index.
        lanes = distinct((*self.rule.lanes, *rides, *new))
        values = [leaf.value for leaf in leaves]
        crossing = Crossing(structure, tuple(rides), lanes, _repeats(leaves, values))
        plan = self.memory.plans.get(crossing)
        if plan is None:
            donated = tuple(i for i, lane in enumerate(lanes) if lane.gives_away)
            if donated and crossing.repeats:
                from weft.core.interpreter.explain import refuse_donated_twice

                refuse_donated_twice(leaves, rides, crossing.repeats)
            # The values of donated Variables are deleted, so that an interrupt must not lose the new ones; see `_run`.
            gives_away = self.boundary.has_updates and bool(donated)
            donation = Donation(name_of(self.user_functions[0]), donated) if donated else None
            # An extractor checks the structure alone, so there is none for rides that depend on a leaf's dtype.
            generates = self.rule.quick and not depends_on_leaves(prefix, read)
            plan = Plan(crossing, self._lifted(self.lift_of(crossing)), gives_away, donation, generates)
            plan = self.memory.plans.add(crossing, plan)
        # Not if the key tells less than the crossing: a filter that is a function may look at values, and equinox's own
        # records have static numbers, among their leaves and in fields that treedefs compare by `==`.
        tells_all = not structure.fields and not depends_on_leaves(prefix, read, on_values=True)
        if key is not None and tells_all and len(seen) == len(values) and all(map(operator.is_, seen, values)):
            self.memory.known.add(key, plan)
        return plan, values, entered

    def lift_of(self, crossing: AnyCrossing) -> Lift[O]:
        """The functions as bodies over the lanes of a crossing, for the rule to lift."""
        rule, boundary, count = self.rule, self.boundary, len(self.functions)
        # A boundary without updates has no lanes for them, so that JAX is not given `out_axes` for outputs that never
        # exist.
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
                name_of(self.user_functions[i]),
                rule.agree(self.options, i),
                returns,
                _first_of(self.user_functions, i),
                rule.traces,
            )
            for i in range(count)
        )
        return Lift(bodies, crossing, self.options, self.memory.traces)

    def _lifted(self, lift: Lift[O]) -> Lifted:
        """The lifted function, which opens the rule's frame, and is staged by `jax.jit` if the rule says so."""
        rule, lifted = self.rule, self.rule.lift(lift)
        details = rule.frame
        if details is None:
            return lifted
        name = rule.name if rule.called is None else rule.called(self.options)

        def framed(extra: PyTree, *groups: tuple[PyTree, ...]) -> tuple[Any, ...]:
            with open_frame(name, **({} if details is no_details else details(lift, extra, groups))):
                return lifted(extra, *groups)

        if not rule.staged:
            return framed
        # Jaxprs and profiles show this name. Of several functions the last does the work: the body of a loop comes
        # after its condition.
        framed.__name__ = framed.__qualname__ = lift.bodies[-1].name
        # `lax.scan` compiles again for each new closure, so an eager loop of weft's compiled at every call. Staged, the
        # loop is in the cache of this `jax.jit`; inlined, it leaves no call in a trace around it.
        return jax.jit(framed, inline=INLINED)

    def _run(
        self,
        plan: Plan,
        hand_over: HandOver,
        extra: PyTree,
        call: Call,
        entered: object,
        values: Sequence[PyTree],
        groups: Groups,
    ) -> tuple[PyTree, tuple[Any, ...]]:
        """Runs a plan; returns what was handed over to the caller, and the result of the transform."""

        def handed_over(result: tuple[Any, ...]) -> PyTree:
            out, updates, outcome, *_ = result  # see `rules.Exit`; more is for `Rule.finish`
            return hand_over(entered, outcome.value, values, (*out, *updates))

        if not plan.gives_away:
            try:
                # The first call traces and lowers, which needs a deep stack for deep models.
                result = call_with_room(plan.lifted, extra, *groups) if plan.uses == 1 else plan.lifted(extra, *groups)
            except Exception as error:
                self.explain(error, call, plan.crossing)
                raise
            if plan.donation is not None:
                plan.donation.note(groups)
            return handed_over(result), result
        # A KeyboardInterrupt between the end of the call and the assignment of its result lost the new values of
        # donated Variables, whose old values are deleted: the model was gone. `list.extend` over `starmap` calls the
        # function and stores the result in C, where Python handles no signals.
        results: list[tuple[Any, ...]] = []
        try:
            results.extend(itertools.starmap(plan.lifted, ((extra, *groups),)))
            if plan.donation is not None:
                plan.donation.note(groups)
            return handed_over(results[0]), results[0]
        except BaseException as error:
            if results:
                handed_over(results[0])
            elif isinstance(error, Exception):
                self.explain(error, call, plan.crossing)
            raise

    def explain(self, error: Exception, call: Call, crossing: AnyCrossing) -> None:
        """Raises an error that names the argument in place of JAX's error, if an argument is to blame."""
        # The call is flattened again for the paths of its leaves, which extractors do not compute.
        from weft.core.interpreter.explain import explain

        crossing.name_lanes(error)
        explain(error, lambda: self.boundary.enter(call)[1], self.boundary.layer)

    def _run_quickly(
        self, plan: Plan, quick: QuickWay, call: Call, extracted: tuple[Any, Sequence[PyTree], Groups]
    ) -> PyTree:
        ways = self.memory.quick
        # Compared by crossing, because a guarded plan is not the remembered one. Empty if another thread has just
        # cleared the caches.
        if not ways or ways[0][0].crossing is not plan.crossing:
            self._promote(plan, quick)
        if plan.gives_away:
            return self._run(plan, quick.hand_over, (), call, *extracted)[0]
        entered, values, groups = extracted
        # As in `_run`, because one more Python call is a tenth of a step of few leaves.
        try:
            out, updates, outcome = plan.lifted((), *groups)
        except Exception as error:
            self.explain(error, call, plan.crossing)
            raise
        if plan.donation is not None:
            plan.donation.note(groups)
        return quick.hand_over(entered, outcome.value, values, (*out, *updates))

    def _promote(self, plan: Plan, quick: QuickWay) -> None:
        # The structure that was called last is tried first, since most programs call one structure in a loop.
        # The tuple is replaced as a whole, so that other threads see the old order or the new one.
        others = tuple(way for way in self.memory.quick if way[0] is not plan)
        self.memory.quick = ((plan, quick), *others[: QUICK_PLANS - 1])


# A guard returns the plan that runs in place of a plan for one call: `debug.nonfinite` looks at outputs through it.
# `guards` holds for a thread or task, `guards_of_process` for the process. They are only read while methods are
# watched, so that a call without them pays nothing.
Guard = Callable[[Interpreted[Any], Plan], Plan]
guards: ContextVar[Guard | None] = ContextVar("weft_guards", default=None)
guards_of_process: list[Guard | None] = [None]


def interpret(rule: Rule[O], boundary: AnyBoundary) -> Callable[[tuple[Function, ...], O], Interpreted[O]]:
    """Gives a rule the semantics of a boundary; parts of threaded records bring their own boundary with them.

    Returns:
        A function from the user's functions and the rule's options to an `Interpreted`, which is called with arguments.
    """
    return lambda functions, options: Interpreted(rule, boundary, functions, options)
