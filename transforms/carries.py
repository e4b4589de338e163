"""The carry of a loop: leaves that go from one iteration to the next.

A carry must keep its structure, shapes, dtypes and static parts. `agreement_of_carries` checks this before JAX does,
and names the paths that change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import jax
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.errors import CarryError
from weft.core.interpreter.boundary import AnyBoundary, Arrival, Call, Departure, Groups, Place, parameter_names
from weft.core.interpreter.prefixes import subtrees
from weft.core.interpreter.rides import CARRIED, Along, Carry, read_step
from weft.core.interpreter.rules import Agreement, Body, Lift, Lifted, Rule
from weft.core.memory import live as of_handle
from weft.core.paths import format_path
from weft.core.records.agree import differences, how_to_lie_alike
from weft.core.records.successors import Others, arguments_by_name, check_origin, closed_over_by, records_in

O = TypeVar("O")


def agreement_of_carries(name: str, arrives: Callable[[Call], Arrival], *, shapes: bool = True) -> Agreement:
    """The agreement of a loop: the carry that a step returns must have the structure of the carry that it got."""

    def agreement(boundary: AnyBoundary, live: Call, departure: Departure) -> Callable[[Any], None]:
        carried = _alone(subtrees(arrives(live), live, departure.read, CARRIED))
        before = boundary.describe(carried, "carry")
        others: Others = [] if boundary.has_identity else _not_carried(live, carried)

        def check(out: Any) -> None:
            _check_arity(name, departure.prefix, out)
            returned = _alone(subtrees(departure.prefix, out, departure.read, CARRIED))
            after = boundary.describe(returned, "carry")
            # Before JAX compares avals, whose error would name places in a flat tuple.
            differing = differences(before, after, shapes=shapes, promotes=shapes)
            if differing:
                # Flax's words for an NNX object in place of another, which its users search for.
                moved = boundary.has_identity and any(" -> another " in place for place in differing)
                rule = (
                    ": Carry references must be the same between iterations, and "
                    f"{name} Variable identity must be preserved across iterations"
                )
                raise CarryError(
                    f"the carry of {name} changes from one iteration to the next{rule if moved else ''}",
                    at=differing,
                    fix="return a carry of the same structure, shapes and dtypes; make a changing number an array"
                    + how_to_lie_alike(differing),
                )
            if others:
                # By path, because both carries have the same structure.
                records = dict(records_in(carried))
                for path, record in records_in(returned):
                    if path in records:
                        check_origin(records[path], record, others, format_path(path, "carry"))

        return check

    return agreement


def _not_carried(live: Call, carried: Any) -> Others:
    """The records among a step's arguments and in its closure that are not part of its carry."""
    (*_, function), args, kwargs = live  # of a loop's functions the last is its step
    # A record of the carry may move to another place in it: a target network is set to the online network.
    carried_ids = {id(record) for _, record in records_in(carried)}
    trees = [*arguments_by_name(args, kwargs, parameter_names(function)), *closed_over_by(of_handle(function))]
    rows = ((name, record) for name, value in trees for _, record in records_in(value))
    return [(name, record) for name, record in rows if id(record) not in carried_ids]


def _check_arity(name: str, prefix: Any, out: Any) -> None:
    """Checks that a step returned as many values as `out_axes` has entries; most often the `y` of the pair is
    missing."""
    if type(prefix) is not tuple:
        return
    entries = cast("tuple[object, ...]", prefix)
    several = cast("Sequence[object]", out) if isinstance(out, tuple | list) else None
    # To a prefix a list is no tuple, whatever its length.
    if isinstance(out, tuple) and len(several or ()) == len(entries):
        return
    alone = jax.typeof(out) if isinstance(out, jax.Array) else type(cast("object", out)).__name__
    kind = "list" if isinstance(out, list) else "tuple"
    returned = f"a single {alone}" if several is None else f"a {kind} of {len(several)} values"
    raise CarryError(
        f"the function of {name} must return {len(entries)} values in a tuple, as out_axes has entries, "
        f"and returned {returned}",
        at=f"out_axes=({', '.join(getattr(entry, '__name__', str(entry)) for entry in entries)})",
        fix="return a pair, (carry, y), where y may be None; or say Carry alone in out_axes",
    )


def _alone(parts: list[Any]) -> Any:
    # Not in a tuple if there is only one, so that paths read `carry.x` and not `carry[0].x`.
    return parts[0] if len(parts) == 1 else tuple(parts)


def carrying_along(body: Body, groups: Groups, *before: Any) -> tuple[Body, list[Place]]:
    """A body that returns all leaves that weft carries in addition to the user's carry, and the places of these leaves.

    An abstract evaluation learns which leaves they are. The body returns them in one update lane, in the order of their
    positions, those too that a step does not change.
    """
    # Without such a lane nothing can be carried along, and the abstract evaluation, which costs a trace, is saved.
    if Along() not in body.departure.update_lanes:
        return body, []
    updated, crossing = body.learn_updates(groups, *before), body.crossing
    along = [i for i in sorted(updated) if isinstance(crossing.rides[i].update, Along)]
    return body.departing(updated=updated), [crossing.places[i] for i in along]


def values_at(groups: Groups, places: Sequence[Place]) -> tuple[Any, ...]:
    """The leaves of lanes at some places."""
    return tuple(groups[lane][place] for lane, place in places)


def with_values(groups: Groups, places: Sequence[Place], values: Sequence[Any]) -> Groups:
    """Lanes with other leaves at some places."""
    lanes = list(groups)
    for (lane, place), value in zip(places, values, strict=True):
        lanes[lane] = (*lanes[lane][:place], value, *lanes[lane][place + 1 :])
    return tuple(lanes)


def types_of_slices(leaves: tuple[Any, ...]) -> tuple[Any, ...]:
    """The types of the slices along the leading axes of a lane's leaves, which may be of length 0."""

    def type_of_slice(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)

    return untyped_jax.tree.map(type_of_slice, leaves)


def everything_carried(call: Call) -> Arrival:
    """The rides of a call whose argument is carried as a whole."""
    return None, (Carry,), None


def rule_of_a_carry(
    name: str, lift: Callable[[Lift[O]], Lifted], *, depart: tuple[Any, ...] = (Carry,), shapes: bool = True
) -> Rule[O]:
    """The rule of a loop whose whole argument is carried.

    Args:
        name: the transform's name, as users write it.
        lift: the JAX call.
        depart: for each of the user's functions the rides of its output; an output on `Carry` must agree with the
            carry.
        shapes: whether the carry keeps its shapes.
    """
    agreement = agreement_of_carries(name, everything_carried, shapes=shapes)
    return Rule(
        name,
        lift,
        arrive=lambda options, call: everything_carried(call),
        depart=lambda options, index: depart[index],
        read=read_step,
        lanes=(CARRIED,),
        staged=True,
        agree=lambda options, index: agreement if depart[index] is Carry else None,
        options=("init", "output"),
    )
