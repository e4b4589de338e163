"""What loops carry: some leaves go from one iteration to the next, and must stay made as they are.

They keep their structure, shapes, dtypes and static parts. `agreement_of_carries` checks it before JAX does, and says
where they drift.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from weft.core.errors import CarryError
from weft.core.interpreter.boundary import NOT_UPDATED, Boundary, Call, Departure
from weft.core.interpreter.rides import Carry, Ride, is_axis, subtrees
from weft.core.interpreter.rules import Agreement, Lift, Lifted, Rule, no_check
from weft.core.records.agree import differences
from weft.core.records.leaves import Leaf

O = TypeVar("O")

# The ride of what is carried without being returned: leaves that a filter says to carry, and, where the boundary wants
# it, what a scan broadcasts but its function updates.
ALONG = "carried along"


def is_carry_or_axis(node: Any) -> bool:
    """Whether a prefix node is `Carry`, an axis, or None."""
    return node is Carry or is_axis(node)


def carried_updates(ride: Ride) -> Ride:
    """What is carried comes back as the carry, updates of what is broadcast do not, and the rest as it rode in."""
    return NOT_UPDATED if ride is Carry or ride is None else ride


def agreement_of_carries(name: str, arrives: Callable[[Call], Any], *, shapes: bool = True) -> Agreement:
    """The agreement of a loop: what is carried out is made like what was carried in."""

    def agreement(boundary: Boundary, live: Call, departure: Departure) -> Callable[[Any], None]:
        before = boundary.describe(_alone(subtrees(arrives(live), live, is_carry_or_axis, Carry)), "carry")

        def check(out: Any) -> None:
            after = boundary.describe(_alone(subtrees(departure.prefix, out, is_carry_or_axis, Carry)), "carry")
            found = differences(before, after, shapes=shapes, promotes=shapes)
            if found:
                raise CarryError(
                    f"the carry of {name} changes from one iteration to the next",
                    at=found,
                    fix="return a carry of the same structure, shapes and dtypes; make a changing number an array",
                )

        return check

    return agreement


def _alone(parts: list[Any]) -> Any:
    # A single carry is described as itself, so that its paths start at `carry`.
    return parts[0] if len(parts) == 1 else tuple(parts)


def everything_carried(call: Call) -> Any:
    """The rides of a call whose argument is carried as a whole."""
    return None, (Carry,), None


def rule_of_a_carry(
    name: str,
    lift: Callable[[Lift[O]], Lifted],
    *,
    depart: tuple[Ride, ...] = (Carry,),
    is_ride: Callable[[Any], bool] = is_carry_or_axis,
    check: Callable[[O, Call, Sequence[Leaf], Sequence[Ride]], None] = no_check,
    options: tuple[str, str] = ("init", "output"),
    shapes: bool = True,
) -> Rule[O]:
    """The rule of a loop whose whole argument is carried.

    Args:
        name: as users call it.
        lift: the JAX call.
        depart: for each of the user's functions where its output rides; what is `Carry` must agree with the argument.
        is_ride: as in `Rule`.
        check: as in `Rule`.
        options: as in `Rule`.
        shapes: whether the carry keeps its shapes.
    """
    agreement = agreement_of_carries(name, everything_carried, shapes=shapes)
    return Rule(
        name,
        lift,
        arrive=lambda options, call: everything_carried(call),
        depart=lambda options, index: depart[index],
        is_ride=is_ride,
        lanes=(Carry,),
        forwards=None,
        updates=carried_updates,
        check=check,
        agree=lambda options, index: agreement if depart[index] is Carry else None,
        options=options,
    )
