"""Rules: what a transform declares, and `Body`, the user's function as JAX gets it.

A rule says how leaves ride, and holds the one call into JAX (`lift`), which takes the user's functions as functions of
lanes (`Body`) and returns a function of lanes. The rules of JAX's transforms are in `weft.transforms`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar, cast

from weft.core import hooks
from weft.core.edge.contexts import marking, successors_context
from weft.core.edge.trees import PyTree, is_tuple
from weft.core.edge.untyped import jax
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
from weft.core.records.draws import ledger, noted_draws
from weft.core.records.leaves import Leaf, is_array, known_as_one
from weft.core.records.storage import unwrapped

O = TypeVar("O")
R = TypeVar("R")

# Called with the live arguments before the user's function runs; it returns a check that is called with the output.
Agreement = Callable[[AnyBoundary, Call, Departure], Callable[[Any], None]]


class OutcomeNode(types.SimpleNamespace):
    """An outcome as a pytree node without leaves, so that JAX stores it in the treedef of the output.

    Its constructor and its flattening are in C. Python raises a KeyboardInterrupt between two of its instructions; with
    a Python function here, one between the end of a compiled call and its result lost the result.
    """

    value: Outcome


jax.tree_util.register_dataclass(OutcomeNode, data_fields=[], meta_fields=["value"])


# What a body returns: the lanes of the output, the lanes of updates, and the outcome. A plain tuple, which JAX builds
# in C (see `OutcomeNode`).
Exit = tuple[Groups, Groups, OutcomeNode]


# Without a representation: JAX writes that of a function without a name whenever it traces it.
@dataclass(eq=False, repr=False)
class Body:
    """The user's function as a pure function of lanes, for JAX to transform.

    Attributes:
        boundary, crossing, departure: how the call enters, and how its output leaves.
        index: the index of the function among the call's functions. The body does not hold the function itself, so that
            a cached plan keeps no closure alive (see `memory`).
        name: the name of the function.
        agreement: checks the output against the arguments (a carry), if the rule demands it.
        returns: interprets the output (as a pair, for one), or refuses it.
        same_as: the index of the first body with the same function, whose trace serves for all of them.
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
        """Runs on lanes; `before` are arguments that the transform itself puts before the user's."""
        # Outside of any looked-at program only functions that are traced to be run are looked at: an eager `vmap` also
        # calls its function with tracers, but its results are used by Python code that weft does not see.
        if marking() or (self.traces and successors_context.value):
            from weft.core.threads.lost import look

            return look(self.run, self.name, (groups, *before))
        return self.run(groups, *before)

    def run(self, groups: Groups, *before: PyTree) -> Exit:
        """Runs in the current trace, without looking for lost successors first."""
        values = self.crossing.ungroup(groups)
        call, memory = self.boundary.rebuild(self.crossing, values)
        functions, args, kwargs = call
        check = self.agreement(self.boundary, call, self.departure) if self.agreement is not None else None
        # Unwraps arguments that are static as a whole, or that were flattened before the call.
        args, kwargs = map(unwrapped, args), {name: unwrapped(value) for name, value in kwargs.items()}
        try:
            function, typed = live(functions[self.index]), self.boundary.typed
            if not self.crossing.repeats and ledger.get() is None:
                out = hooks.call_checked(function, (*before, *args), kwargs, typed)
            else:
                carried = [isinstance(ride, Carried) for ride in self.crossing.rides]
                with (
                    known_as_one(self.crossing.repeats, values),
                    noted_draws(self.crossing.draws, values, carried) as returned,
                ):
                    out = hooks.call_checked(function, (*before, *args), kwargs, typed)
                    returned(out)
        # JAX's errors about traced values derive from TypeError or IndexError; those about a pair in place of an array
        # are ValueErrors and AttributeErrors too.
        except (TypeError, IndexError, ValueError, AttributeError) as error:
            from weft.core.interpreter.explain import explain_traced
            from weft.core.interpreter.forgotten import explain_forgotten

            names = functools.partial(parameter_names, functions[self.index])
            explain_traced(error, values, self.crossing.structure.path_of, names, self.boundary.layer)
            explain_forgotten(error)
            raise
        # Before the output is matched with its prefix: a missing auxiliary output was reported as an `out_axes` that
        # does not fit.
        out = self.returns(out)
        if check is not None:
            check(out)
        groups, updates, outcome = self.boundary.leave(self.crossing, values, call, memory, out, self.departure)
        return groups, updates, OutcomeNode(value=outcome)

    def departing(self, **changes: Any) -> Body:
        """This body with another departure."""
        return replace(self, departure=replace(self.departure, **changes))

    def learn_updates(self, groups: Groups, *before: PyTree) -> frozenset[int]:
        """The positions of the leaves that the function updates, learned by one abstract evaluation."""
        outcome = self.learn_outcome(groups, *before)
        return frozenset() if outcome is None else outcome.updated

    def learn_outcome(self, groups: Groups, *before: PyTree) -> Outcome | None:
        """The outcome of one abstract evaluation; None if the boundary has no updates."""
        if not self.boundary.may_update(self.crossing):
            return None

        # A new function at each call: JAX reports endless recursion if a function is traced while it is being traced.
        def run(groups: Groups, *before: PyTree) -> Exit:
            return self(groups, *before)

        outcome: Any = jax.eval_shape(run, groups, *before)[2]
        return outcome.value


def as_it_is(options: object, out: R) -> R:
    """Returns the output unchanged: `Rule.returns` of rules that accept any output."""
    return out


def pair(out: PyTree) -> tuple[PyTree, PyTree]:
    """The output as `(value, auxiliary output)`: a tuple or a list of two, as JAX accepts it."""
    entries = tuple(cast("list[Any]", out)) if isinstance(out, list) else out
    if is_tuple(entries) and len(entries) == 2:
        return entries[0], entries[1]
    returned = "an array" if is_array(entries) else type(entries).__name__
    if is_tuple(entries):
        returned = f"a sequence of {len(entries)}"
    raise PairError(
        f"has_aux does not fit: the function returned {returned}, not a pair",
        fix="return (value, auxiliary output), or leave has_aux out",
    )


@dataclass(frozen=True)
class Lift(Generic[O]):
    """The argument of `Rule.lift`: the functions as bodies over lanes, and all that a cache key knows of the call."""

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
        """The rides of the lanes of their output."""
        return self.bodies[0].departure.lanes

    @property
    def update_lanes(self) -> tuple[Ride, ...]:
        """The rides of the lanes of their updates."""
        return self.bodies[0].departure.update_lanes


@dataclass(frozen=True)
class Finish(Generic[O]):
    """The argument of `Rule.finish`, for rules whose result is not just the function's output."""

    boundary: AnyBoundary
    crossing: AnyCrossing
    options: O
    call: Call
    values: Sequence[PyTree]
    outcome: Outcome
    more: tuple[Any, ...]


Prepare = Callable[[AnyBoundary, AnyCrossing, Call, Sequence[Any]], Any]
Lifted = Callable[..., tuple[Any, ...]]


def of_lanes(function: Callable[[Groups], Any]) -> Lifted:
    """A function of all lanes as a lifted function, for transforms without arguments of their own."""

    def lifted(extra: object, *groups: tuple[PyTree, ...]) -> Any:
        return function(groups)

    return lifted


def no_details(lift: Lift[O], extra: object, groups: Groups) -> Mapping[str, object]:
    """`Rule.frame` of rules whose frame shows nothing but the transform's name."""
    return {}


def no_check(options: object, call: Call, leaves: Sequence[Leaf], rides: Sequence[Ride]) -> None:
    """`Rule.check` of rules that accept any call."""


@dataclass(frozen=True, eq=False)
class Rule(Generic[O]):
    """The declaration of one transform; equal only to itself.

    Attributes:
        name: the transform's name, as users write it.
        lift: the JAX call: from bodies to a function `lifted(extra, *groups) -> (*Exit, *more)`. It decides whether
            updates are one more output, are carried, or are stacked.
        arrive: the rides of a call, as a prefix of `(functions, args, kwargs)`. They follow from options and structure.
        depart: the rides of function `i`'s output, as a prefix of it.
        read: turns a node of those prefixes into a ride.
        lanes: lanes that exist even if they are empty, in order; others follow.
        check: refuses a call before anything runs.
        finish: makes the result from the output and the other results of `lift`.
        options: the names of the two prefixes in the user's call, for errors.
        agree: the check of function `i`'s output against the arguments, if there is one.
        frame: the details of the frame that is open while the functions run; None: the lift opens the frame itself,
            because JAX may run the functions later.
        called: the transform's name where that depends on the options.
        staged: whether the lifted function is staged by an inlined `jax.jit`: it leaves no call in a trace, and called
            from Python again it is in the cache.
        compiles: whether the lift compiles the functions or computes nothing, so that they see no values.
        returns: interprets a function's output (as a pair, for one), or refuses it.
        quick: whether calls of a structure that was seen before run generated code.
        retraces: whether each call runs the functions anew, as derivatives do: a plan has no trace that could be stale.
        shares: when two transformed forms of one function share their plans: `always`, as in `jax.jit`; `outside` of
            traces, for functions that close over values, which may be tracers inside; or `never`, where JAX may call
            the functions after the call has ended (custom derivatives), so that a plan must hold them.
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
    retraces: bool = False
    shares: Literal["always", "outside", "never"] = "outside"

    @property
    def runs(self) -> bool:
        """Whether a call computes the functions' outputs; `eval_shape` and `make_jaxpr` do not."""
        return self.quick or not self.compiles

    @property
    def traces(self) -> bool:
        """Whether a call outside of any trace traces the functions, and then runs the program."""
        return self.staged or self.quick


def titled(name: str, lifted: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a lifted function the name of the user's function, for jaxprs and profiles; the signature does not
    change."""
    lifted.__name__ = lifted.__qualname__ = name
    return lifted
