"""What loops carry: some leaves go from one iteration to the next, and must stay made as they are.

They keep their structure, shapes, dtypes and static parts. `agreement_of_carries` checks it before JAX does, and says
where they drift.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.agree import differences, subtrees
from weft.core.boundary import NOT_UPDATED, Boundary, Call, Departure
from weft.core.errors import CarryError
from weft.core.rides import Carry, Ride, is_axis
from weft.core.rules import Agreement

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
        before = boundary.describe(_alone(subtrees(arrives(live), live, is_carry_or_axis, Carry)))

        def check(out: Any) -> None:
            after = boundary.describe(_alone(subtrees(departure.prefix, out, is_carry_or_axis, Carry)))
            found = differences(before, after, root="carry", shapes=shapes, promotes=shapes)
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
