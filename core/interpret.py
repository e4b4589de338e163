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
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import equinox as eqx
from weft.core import hooks
from weft.core.agree import Described
from weft.core.explain import explain
from weft.core.leaves import Leaf
from weft.core.rides import Ride, depends_on_leaves, is_axis, rides_in
from weft.core.statics import Static, given
from weft.core.untyped import jax

O = TypeVar("O")
NOT_UPDATED = object()
Call = tuple[tuple[Callable[..., Any], ...], tuple[Any, ...], Mapping[str, Any]]
Groups = tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Crossing:
    """How a call crosses into a transform, without its arrays.

    Attributes:
        structure: what the boundary took the call apart into.
        rides: the ride of each dynamic leaf.
        lanes: the distinct rides, in the order in which the transform sees them.
    """

    structure: Any
    rides: tuple[Ride, ...]
    lanes: tuple[Ride, ...]

    @functools.cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """For each leaf its lane and its place in the lane."""
        sizes = [0] * len(self.lanes)
        index = {lane: i for i, lane in enumerate(self.lanes)}
        places: list[tuple[int, int]] = []
        for ride in self.rides:
            lane = index[ride]
            places.append((lane, sizes[lane]))
            sizes[lane] += 1
        return tuple(places)

    def group(self, values: Sequence[Any]) -> Groups:
        """Leaf values, by lane."""
        groups: list[list[Any]] = [[] for _ in self.lanes]
        for value, (lane, _) in zip(values, self.places, strict=True):
            groups[lane].append(value)
        return tuple(map(tuple, groups))

    def ungroup(self, groups: Groups) -> list[Any]:
        """Leaf values in order, from lanes."""
        return [groups[lane][place] for lane, place in self.places]


@dataclass(frozen=True)
class Departure:
    """Where the leaves of an output ride.

    Attributes:
        prefix: rides as a prefix of the output.
        lanes: the distinct rides that an output leaf can have.
        is_ride: whether a node of the prefix is a ride.
        forwards: whether an output leaf that is an input leaf may be forwarded, by their rides.
        option: what the prefix is called in the user's call, for errors.
        refused: rides that no leaf may leave on, each with what to do instead.
        updates: the ride on which updates of an argument leave, by the argument's own, or NOT_UPDATED.
        arrive: the rides of a call, as a prefix of it, for what is new in an argument.
        updated: the positions of the leaves that count as updated, where that was learned beforehand; None: those that
            changed.
    """

    prefix: Any
    lanes: tuple[Ride, ...]
    is_ride: Callable[[Any], bool]
    forwards: Callable[[Ride, Ride], bool] | None
    option: str
    refused: Mapping[Ride, str]
    updates: Callable[[Ride], Ride]
    arrive: Callable[[Call], Any]
    updated: frozenset[int] | None = None


# From a call to (what `hand_over` needs, leaf values, lanes), or None.
Extract = Callable[[Call], tuple[Any, Sequence[Any], Groups] | None]


class Boundary(Protocol):
    """How values cross into a transform and out again. There are two: values and references."""

    name: str
    # Whether arguments can be updated at all, and whether updates of what a loop only broadcasts are carried along.
    has_updates: bool
    carries_along: bool

    def enter(self, call: Call) -> tuple[Hashable, list[Any], Any]:
        """Takes a call apart: its structure, its dynamic leaves (with `path` and `value`), and what `hand_over` needs
        of the caller's own objects."""
        ...

    def rides(
        self, prefix: Any, call: Call, entered: Any, leaves: Sequence[Any], is_ride: Callable[[Any], bool], what: str
    ) -> list[Ride]:
        """The ride of each leaf, by a prefix of the call; `entered` is what `enter` gave for `hand_over`."""
        ...

    def rebuild(self, crossing: Crossing, values: Sequence[Any]) -> tuple[Call, Any]:
        """The live call, with the values that the transform gives, and what `leave` needs to remember of it."""
        ...

    def describe(self, tree: Any) -> Described:
        """What must not change of a tree that is carried."""
        ...

    def describe_outcome(self, outcome: Any, groups: Groups) -> Described:
        """What must not differ between the outputs of branches."""
        ...

    def pack(self, tree: Any) -> tuple[Hashable, tuple[Any, ...]]:
        """Any tree as a structure and arrays, to be carried through JAX as it is."""
        ...

    def unpack(self, structure: Any, leaves: Sequence[Any]) -> Any:
        """The inverse of `pack`."""
        ...

    def places_of_updates(self, outcome: Any) -> Sequence[tuple[int, int, int]]:
        """(leaf, lane, place) for each leaf of the arguments that an outcome updates."""
        ...

    def updated(self, outcome: Any) -> frozenset[int]:
        """The positions of the arguments' leaves that an outcome updates."""
        ...

    def update_lanes(self, crossing: Crossing) -> tuple[Ride, ...]:
        """The rides that updates of the arguments can have."""
        ...

    def leave(
        self, crossing: Crossing, values: Sequence[Any], live: Call, memory: Any, out: Any, departure: Departure
    ) -> tuple[Groups, Any]:
        """Takes an output (and updates) apart into lanes, and the outcome."""
        ...

    def hand_over(self, entered: Any, outcome: Any, values: Sequence[Any], groups: Groups) -> Any:
        """Gives the caller the output, and writes updates if there are any."""
        ...

    def sparse_call(self, crossing: Crossing, values: Mapping[int, Any]) -> Call:
        """The call's trees with values at some leaves and nothing elsewhere: how (co)tangents are given."""
        ...

    def read_sparse(self, crossing: Crossing, call: Call) -> list[Any]:
        """The inverse of `sparse_call`: for each dynamic leaf its value, or None."""
        ...

    def sparse_output(self, outcome: Any, lane: int, values: Sequence[Any]) -> Any:
        """A tree like the output, with values at what rides in one lane: how output (co)tangents are given."""
        ...

    def read_sparse_output(self, outcome: Any, lane: int, tree: Any) -> list[Any]:
        """The inverse of `sparse_output`: for each leaf of the lane its value, or None."""
        ...

    def extractor(self, crossing: Crossing, entered: Any, call: Call) -> Extract | None:
        """A quick way to take another call of the same make apart; it returns None for another make."""
        ...

    def quick_hand_over(self, entered: Any, outcome: Any, values: Sequence[Any], groups: Groups) -> Any:
        """`hand_over`, for an outcome that is expected again."""
        ...


# Called with the live arguments before the user's function; what it returns is called with the output after.
Agreement = Callable[[Boundary, Call, Departure], Callable[[Any], None]]


class Body:
    """The user's function as a pure function of lanes, for JAX to transform."""

    def __init__(
        self,
        boundary: Boundary,
        crossing: Crossing,
        index: int,
        departure: Departure,
        user_function: Callable[..., Any],
        agreement: Agreement | None,
    ):
        self.user_function = user_function
        self.agreement = agreement
        self.boundary = boundary
        self.crossing = crossing
        self.index = index
        self.departure = departure

    def __call__(self, groups: Groups, *before: Any) -> tuple[Groups, Static]:
        """Runs on lanes; `before` are arguments that the transform itself supplies, ahead of the user's."""
        values = self.crossing.ungroup(groups)
        live, memory = self.boundary.rebuild(self.crossing, values)
        functions, args, kwargs = live
        check = self.agreement(self.boundary, live, self.departure) if self.agreement is not None else None
        args, kwargs = map(given, args), {name: given(value) for name, value in kwargs.items()}
        out = hooks.call_checked(functions[self.index], (*before, *args), kwargs)
        if check is not None:
            check(out)
        groups, outcome = self.boundary.leave(self.crossing, values, live, memory, out, self.departure)
        return groups, Static(outcome)

    def departing(self, **changes: Any) -> Body:
        """This body with another departure."""
        departure = replace(self.departure, **changes)
        return Body(self.boundary, self.crossing, self.index, departure, self.user_function, self.agreement)

    def learn_updates(self, groups: Groups, *before: Any) -> frozenset[int]:
        """Which leaves of the arguments the function updates, by one abstract evaluation."""
        if not self.boundary.has_updates:
            return frozenset()

        # Another function each time: JAX takes a function that is traced while it is traced for endless recursion.
        def run(groups: Groups, *before: Any) -> tuple[Groups, Static]:
            return self(groups, *before)

        outcome: Any = jax.eval_shape(run, groups, *before)[1]
        return self.boundary.updated(outcome.value)


@dataclass(frozen=True)
class Lift(Generic[O]):
    """What a rule lifts: the functions as bodies over lanes, and all that is known before arrays are."""

    bodies: tuple[Body, ...]
    crossing: Crossing
    out_lanes: tuple[Ride, ...]
    options: O

    @property
    def lanes(self) -> tuple[Ride, ...]:
        """The rides of the lanes that the bodies take."""
        return self.crossing.lanes


@dataclass(frozen=True)
class Finish(Generic[O]):
    """What a rule turns into its result when that is not just the function's output."""

    boundary: Boundary
    crossing: Crossing
    options: O
    call: Call
    values: Sequence[Any]
    outcome: Any
    more: tuple[Any, ...]


Prepare = Callable[[Boundary, Crossing, Call, Sequence[Any]], Any]
Lifted = Callable[..., tuple[Any, ...]]


def _same_ride(arrived: Ride, departs: Ride) -> bool:
    return arrived == departs


def _no_check(options: Any, call: Call, leaves: Sequence[Leaf], rides: Sequence[Ride]) -> None:
    return None


@dataclass(frozen=True, eq=False)
class Rule(Generic[O]):
    """The declaration of one transform; equal only to itself.

    Attributes:
        name: as users call it.
        lift: the JAX call: from bodies to a function `lifted(extra, *groups) -> (groups, outcome, *more)`.
        arrive: the rides of a call, as a prefix of `(functions, args, kwargs)`.
        depart: the rides of function `i`'s output, as a prefix of it.
        is_ride: whether a node of those prefixes is a ride.
        lanes: lanes that are there even if nothing rides in them, in order; others follow.
        forwards: whether an output leaf that is an input leaf may stay outside the trace, by their rides; None: never.
        check: refuses a call before anything runs.
        finish: makes the result from the output and what `lift` returned beside it.
        options: the names of the two prefixes in the user's call, for errors.
        agree: of function `i`, what its output must agree with.
        refused: rides that no leaf may leave on, each with what to do instead.
        updates: the ride on which updates of an argument leave, by the argument's own, or NOT_UPDATED.
        quick: whether calls of a known make take the generated way.
    """

    name: str
    lift: Callable[[Lift[O]], Lifted]
    arrive: Callable[[O, Call], Any] = lambda options, call: None
    depart: Callable[[O, int], Any] = lambda options, index: None
    is_ride: Callable[[Any], bool] = is_axis
    lanes: tuple[Ride, ...] = ()
    forwards: Callable[[Ride, Ride], bool] | None = _same_ride
    check: Callable[[O, Call, Sequence[Leaf], Sequence[Ride]], None] = _no_check
    finish: Callable[[Any, Finish[O]], Any] | None = None
    options: tuple[str, str] = ("in_axes", "out_axes")
    agree: Callable[[O, int], Agreement | None] = lambda options, index: None
    refused: Mapping[Ride, str] = field(default_factory=dict[Ride, str])
    updates: Callable[[Ride], Ride] = lambda ride: ride
    quick: bool = False


@dataclass(eq=False)
class Plan:
    """What is kept of a crossing: the lifted function, and the generated way in once it has paid to make one."""

    crossing: Crossing
    lifted: Lifted
    uses: int = 0
    extract: Extract | None = None


def as_tree(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is a record's method as a tree that holds the record, whose arrays must not become constants.

    Equinox does so for other methods, but not for `__call__` and its like.
    """
    if isinstance(function, types.MethodType) and isinstance(function.__self__, eqx.Module):
        return jax.tree_util.Partial(function.__func__, function.__self__)
    return function


# How many makes of call are tried by the generated way before the structure is looked up. More would cost
# a call of the last one more than looking it up does.
QUICK_PLANS = 4


@dataclass(eq=False)
class Interpreted(Generic[O]):
    """Functions under one rule and one boundary, with the plans of the calls that they have seen.

    Plans are keyed by crossing: tree definition, static leaves and rides. They hold no arrays and are never stale,
    because a crossing that differs in any of these is another key.
    """

    rule: Rule[O]
    boundary: Boundary
    functions: tuple[Callable[..., Any], ...]
    options: O
    plans: dict[Crossing, Plan] = field(default_factory=dict[Crossing, Plan])
    quick: tuple[Plan, ...] = ()

    def __post_init__(self) -> None:
        self.functions = tuple(map(as_tree, self.functions))

    def __call__(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, extra: Any = (), prepare: Prepare | None = None
    ) -> Any:
        """Calls the transformed functions.

        Args:
            args: the user's positional arguments.
            kwargs: the user's arguments by name.
            extra: what the transform takes beside them (a predicate, a trip count).
            prepare: makes `extra` from the crossing, where it depends on it (tangents).
        """
        call = (self.functions, args, kwargs)
        for plan in self.quick:
            assert plan.extract is not None
            found = plan.extract(call)
            if found is not None:
                return self._run_quickly(plan, call, *found)
        plan, values, entered = self.plan(call)
        if prepare is not None:
            extra = prepare(self.boundary, plan.crossing, call, values)
        result = self._guarded(plan, extra, call, values, plan.crossing.group(values))
        groups, outcome, *more = result
        out = self.boundary.hand_over(entered, outcome.value, values, groups)
        if self.rule.finish is None:
            return out
        return self.rule.finish(
            out, Finish(self.boundary, plan.crossing, self.options, call, values, outcome.value, tuple(more))
        )

    def plan(self, call: Call) -> tuple[Plan, list[Any], Any]:
        """The plan of a call, made if need be; the call's dynamic leaves; and what `hand_over` needs of it."""
        structure, leaves, entered = self.boundary.enter(call)
        prefix = self.rule.arrive(self.options, call)
        rides = self.boundary.rides(prefix, call, entered, leaves, self.rule.is_ride, self.rule.options[0])
        self.rule.check(self.options, call, leaves, rides)
        lanes = tuple(dict.fromkeys((*self.rule.lanes, *rides)))
        crossing = Crossing(structure, tuple(rides), lanes)
        plan = self.plans.get(crossing)
        if plan is None:
            plan = self.plans.setdefault(crossing, Plan(crossing, self.rule.lift(self._lift(crossing))))
        plan.uses += 1
        # The quick way looks at the structure alone.
        if self.rule.quick and plan.uses == 2 and not depends_on_leaves(prefix, self.rule.is_ride):
            self._promote(plan, entered, call)
        return plan, [leaf.value for leaf in leaves], entered

    def _lift(self, crossing: Crossing) -> Lift[O]:
        arrived = self.boundary.update_lanes(crossing)
        updates = tuple(ride for ride in map(self.rule.updates, arrived) if ride is not NOT_UPDATED)
        arrive = functools.partial(self.rule.arrive, self.options)
        prefixes = [self.rule.depart(self.options, i) for i in range(len(self.functions))]
        is_ride, forwards, option = self.rule.is_ride, self.rule.forwards, self.rule.options[1]
        found = [ride for prefix in prefixes for ride in rides_in(prefix, is_ride)]
        lanes = tuple(dict.fromkeys((*found, *updates)))
        bodies = tuple(
            Body(
                self.boundary,
                crossing,
                i,
                Departure(prefix, lanes, is_ride, forwards, option, self.rule.refused, self.rule.updates, arrive),
                self.functions[i],
                self.rule.agree(self.options, i),
            )
            for i, prefix in enumerate(prefixes)
        )
        return Lift(bodies, crossing, lanes, self.options)

    def _guarded(self, plan: Plan, extra: Any, call: Call, values: Sequence[Any], groups: Groups) -> tuple[Any, ...]:
        try:
            return plan.lifted(extra, *groups)
        except Exception as error:
            explain(error, lambda: self.boundary.enter(call)[1])
            raise

    def _run_quickly(self, plan: Plan, call: Call, entered: Any, values: Sequence[Any], groups: Groups) -> Any:
        if plan is not self.quick[0]:
            self._promote(plan, entered, call)
        groups, outcome = self._guarded(plan, (), call, values, groups)
        return self.boundary.quick_hand_over(entered, outcome.value, values, groups)

    def _promote(self, plan: Plan, entered: Any, call: Call) -> None:
        # Replaced as a whole, so that other threads see the old order or the new one.
        if plan.extract is None:
            plan.extract = self.boundary.extractor(plan.crossing, entered, call)
        if plan.extract is not None:
            others = tuple(other for other in self.quick if other is not plan)
            self.quick = (plan, *others[: QUICK_PLANS - 1])


def interpret(rule: Rule[O], boundary: Boundary) -> Callable[[tuple[Callable[..., Any], ...], O], Interpreted[O]]:
    """Gives a rule one of its two semantics.

    Returns:
        A function from the user's functions and the rule's options to what can be called with arguments.
    """
    return lambda functions, options: Interpreted(rule, boundary, functions, options)
