"""Rules: the declaration of one transform, and what it is given to lift.

A rule says where things ride, and holds the one call into JAX (`lift`), from the user's functions as functions of lanes
(`Body`) to a function of lanes. The rules themselves are in `weft.transforms`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar, cast

from weft.core import hooks
from weft.core.contexts import marking, successors_context
from weft.core.edge.trees import PyTree
from weft.core.edge.untyped import is_tuple, jax
from weft.core.errors import PairError
from weft.core.interpreter.boundary import (
    AnyBoundary,
    AnyCrossing,
    Arrival,
    Call,
    Departure,
    Groups,
    Outcome,
    parameter_names,
)
from weft.core.interpreter.retraces import Traces
from weft.core.interpreter.rides import Carried, Read, Ride, read_axis
from weft.core.memory import live
from weft.core.records.aliases import known_as_one
from weft.core.records.draws import noted_draws
from weft.core.records.leaves import Leaf, is_array
from weft.core.records.statics import given

O = TypeVar("O")
R = TypeVar("R")

# Called with the live arguments before the user's function; what it returns is called with the output after.
Agreement = Callable[[AnyBoundary, Call, Departure], Callable[[Any], None]]


class OutcomeNode(types.SimpleNamespace):
    """An outcome as a pytree node without leaves, in the output of what JAX transforms.

    Its constructor and its flattening are in C: between the end of a compiled call and its result there is no
    instruction of Python, at which an interrupt could be raised, and the result be lost.
    """

    value: Outcome


jax.tree_util.register_dataclass(OutcomeNode, data_fields=[], meta_fields=["value"])


# What a body returns: the lanes of the output, those of what it changed in its arguments, and the outcome. A plain
# tuple, which JAX builds in C (see `OutcomeNode`).
Exit = tuple[Groups, Groups, OutcomeNode]


@dataclass(eq=False)
class Body:
    """The user's function as a pure function of lanes, for JAX to transform.

    Attributes:
        boundary, crossing, departure: how the call comes in, and what it returns goes out.
        index: which of the functions it is. Not the function, which is alive in the call alone (see `memory`).
        name: of the function.
        agreement: what its output must agree with.
        returns: what its output is taken for.
        same_as: of the bodies whose function is this very one, the first: what is traced of it serves them all.
        traces: see `Rule.traces`.
    """

    boundary: AnyBoundary
    crossing: AnyCrossing
    index: int
    departure: Departure
    name: str
    agreement: Agreement | None
    returns: Callable[[PyTree], PyTree]
    same_as: int
    traces: bool

    def __call__(self, groups: Groups, *before: PyTree) -> Exit:
        """Runs on lanes; `before` are arguments that the transform itself supplies, ahead of the user's."""
        if marking() or (self.traces and successors_context.value):
            from weft.core.threads.lost import look

            return look(self.run, self.name, (groups, *before))
        return self.run(groups, *before)

    def run(self, groups: Groups, *before: PyTree) -> Exit:
        """As a call, in the trace that runs: for a function that gives more than what it returns."""
        values = self.crossing.ungroup(groups)
        call, memory = self.boundary.rebuild(self.crossing, values)
        functions, args, kwargs = call
        check = self.agreement(self.boundary, call, self.departure) if self.agreement is not None else None
        # What was static as a whole, or taken apart beforehand, is itself again for the function.
        args, kwargs = map(given, args), {name: given(value) for name, value in kwargs.items()}
        try:
            carried = [isinstance(ride, Carried) for ride in self.crossing.rides]
            with (
                known_as_one(self.crossing.repeats, values),
                noted_draws(self.crossing.draws, values, carried) as returned,
            ):
                out = hooks.call_checked(live(functions[self.index]), (*before, *args), kwargs, self.boundary.typed)
                returned(out)
        # What JAX raises where Python needs a traced value derives from one of the first two.
        except (TypeError, IndexError, ValueError, AttributeError) as error:
            from weft.core.interpreter.explain import explain_traced
            from weft.core.interpreter.forgotten import explain_forgotten

            names = functools.partial(parameter_names, functions[self.index])
            explain_traced(error, values, self.crossing.structure.path_of, names, self.boundary.layer)
            explain_forgotten(error)
            raise
        # Before the output meets its prefix: a missing auxiliary output would be reported as a prefix that does not
        # fit.
        out = self.returns(out)
        if check is not None:
            check(out)
        groups, updates, outcome = self.boundary.leave(self.crossing, values, call, memory, out, self.departure)
        return groups, updates, OutcomeNode(value=outcome)

    def departing(self, **changes: Any) -> Body:
        """This body with another departure."""
        return replace(self, departure=replace(self.departure, **changes))

    def learn_updates(self, groups: Groups, *before: PyTree) -> frozenset[int]:
        """Which leaves of the arguments the function updates, by one abstract evaluation."""
        outcome = self.learn_outcome(groups, *before)
        return frozenset() if outcome is None else outcome.updated

    def learn_outcome(self, groups: Groups, *before: PyTree) -> Outcome | None:
        """What the function returns and does, by one abstract evaluation; None where nothing is ever updated."""
        if not self.boundary.may_update(self.crossing):
            return None

        # Another function each time: JAX takes a function that is traced while it is traced for endless recursion.
        def run(groups: Groups, *before: PyTree) -> Exit:
            return self(groups, *before)

        outcome: Any = jax.eval_shape(run, groups, *before)[2]
        return outcome.value


def as_it_is(options: object, out: R) -> R:
    """What a function returned, for rules that expect nothing of it."""
    return out


def pair(out: PyTree) -> tuple[PyTree, PyTree]:
    """A value and what goes with it; JAX takes a tuple or a list for it."""
    entries = tuple(cast("list[Any]", out)) if isinstance(out, list) else out
    if is_tuple(entries) and len(entries) == 2:
        return entries[0], entries[1]
    found = "an array" if is_array(entries) else type(entries).__name__
    if is_tuple(entries):
        found = f"a sequence of {len(entries)}"
    raise PairError(
        f"has_aux does not fit: the function returned {found}, not a pair",
        fix="return (value, auxiliary output), or leave has_aux out",
    )


@dataclass(frozen=True)
class Lift(Generic[O]):
    """What a rule lifts: the functions as bodies over lanes, and all that is known before arrays are."""

    bodies: tuple[Body, ...]
    crossing: AnyCrossing
    options: O
    traces: Traces

    @property
    def lanes(self) -> tuple[Ride, ...]:
        """The rides of the lanes that the bodies take."""
        return self.crossing.lanes

    @property
    def out_lanes(self) -> tuple[Ride, ...]:
        """The rides of the lanes that they return, of their output."""
        return self.bodies[0].departure.lanes

    @property
    def update_lanes(self) -> tuple[Ride, ...]:
        """The rides of the lanes that they return, of what they change."""
        return self.bodies[0].departure.update_lanes


@dataclass(frozen=True)
class Finish(Generic[O]):
    """What a rule turns into its result when that is not just the function's output."""

    boundary: AnyBoundary
    crossing: AnyCrossing
    options: O
    call: Call
    values: Sequence[PyTree]
    outcome: Outcome
    more: tuple[Any, ...]


Prepare = Callable[[AnyBoundary, AnyCrossing, Call, Sequence[Any]], Any]
Lifted = Callable[..., tuple[Any, ...]]


def no_details(lift: Lift[O], extra: object, groups: Groups) -> Mapping[str, object]:
    """The frame of a rule of which there is no more to say than its name."""
    return {}


def no_check(options: object, call: Call, leaves: Sequence[Leaf], rides: Sequence[Ride]) -> None:
    """The check of a rule that refuses nothing beforehand."""


@dataclass(frozen=True, eq=False)
class Rule(Generic[O]):
    """The declaration of one transform; equal only to itself.

    Attributes:
        name: as users call it.
        lift: the JAX call: from bodies to a function `lifted(extra, *groups) -> (*Exit, *more)`. It says where updates
            go: they are one more output, or are carried, or stacked.
        arrive: the rides of a call, as a prefix of `(functions, args, kwargs)`.
        depart: the rides of function `i`'s output, as a prefix of it.
        read: what a node of those prefixes means.
        lanes: lanes that are there even if nothing rides in them, in order; others follow.
        check: refuses a call before anything runs.
        finish: makes the result from the output and what `lift` returned beside it.
        options: the names of the two prefixes in the user's call, for errors.
        agree: of function `i`, what its output must agree with.
        frame: the details of the frame that is open while the functions run; None: the lift opens it, because JAX may
            run them without it.
        called: as users call it, where that depends on the options.
        staged: whether the lifted function is staged by an inlined `jax.jit`: inside a trace that leaves nothing
            behind, and called again from Python it is found compiled.
        compiles: whether the lift compiles the functions, or computes nothing: as with `staged`, they see no values.
        returns: what a function's output is taken for, which may be refused.
        quick: whether calls of a known make take the generated way.
        shares: when functions that are transformed again, alike, share what was learned of them: `always`, as in
            `jax.jit`; `outside` of traces, if they close over values, which may be tracers inside; or `never`, where
            JAX may call them once the call is over (custom derivatives), so that they have to be held.
    """

    name: str
    lift: Callable[[Lift[O]], Lifted]
    arrive: Callable[[O, Call], Arrival] = lambda options, call: None
    depart: Callable[[O, int], PyTree] = lambda options, index: None
    read: Read = read_axis
    lanes: tuple[Ride, ...] = ()
    check: Callable[[O, Call, Sequence[Leaf], Sequence[Ride]], None] = no_check
    finish: Callable[[PyTree, Finish[O]], PyTree] | None = None
    options: tuple[str, str] = ("in_axes", "out_axes")
    agree: Callable[[O, int], Agreement | None] = lambda options, index: None
    frame: Callable[[Lift[O], PyTree, Groups], Mapping[str, object]] | None = no_details
    called: Callable[[O], str] | None = None
    staged: bool = False
    compiles: bool = False
    returns: Callable[[O, PyTree], PyTree] = as_it_is
    quick: bool = False
    shares: Literal["always", "outside", "never"] = "outside"

    @property
    def runs(self) -> bool:
        """Whether a call computes what its functions say, which `eval_shape` and `make_jaxpr` do not."""
        return self.quick or not self.compiles

    @property
    def traces(self) -> bool:
        """Whether a call outside of traces traces the functions, to run the program."""
        return self.staged or self.quick
