"""Boundaries: how values cross into a transform and out again.

A call is taken apart into a structure and dynamic leaves, and the rule says where each leaf *rides*. Leaves that ride
alike form a *lane*, and lanes are all that JAX sees: a flat tuple of arrays each. A `Crossing` is how a call goes in, a
`Departure` where what the function returns may go, and a `Boundary` does both for one semantics of objects.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from weft.core.edge._jax import is_mapped
from weft.core.errors import AxisError
from weft.core.interpreter.rides import Ride
from weft.core.paths import Path
from weft.core.records.agree import Described

# The ride of updates that there may not be.
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

    def refuse_mapped(self, ride: Ride, value: Any, path: Callable[[], str]) -> None:
        """Refuses what differs along the axis of a `vmap`, but is to leave without one.

        Raises:
            AxisError: naming its path.
        """
        if ride is None and self.option == "out_axes":
            mapped = [leaf for leaf in jax.tree.leaves(value) if is_mapped(leaf)]
            if mapped:
                raise AxisError(
                    "something mapped leaves under None: by out_axes, or by the in_axes of an argument that changes",
                    at=f"{path()}: {jax.typeof(mapped[0])} for each index",
                    fix="give it an axis, or reduce it over the mapped one (mean, sum, psum)",
                )


# From a call to (what `hand_over` needs, leaf values, lanes), or None.
Extract = Callable[[Call], tuple[Any, Sequence[Any], Groups] | None]


class Boundary(Protocol):
    """How values cross into a transform and out again. There are two: values and references."""

    name: str
    # Whether arguments can be updated at all, and whether updates of what a loop only broadcasts are carried along.
    has_updates: bool
    carries_along: bool
    # Whether annotations are contracts even where they name no shape; see `hooks.ContractHook.call`.
    typed: bool
    # Whether what is learned of a function in one transformed form serves in another; see `memory`.
    shares: bool
    # Whether a function may put new things into its arguments.
    restructures: bool

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

    def path_of(self, crossing: Crossing, position: int) -> Path:
        """Where a dynamic leaf of the arguments is, from the parameter's name on, for errors."""
        ...

    def describe_crossing(self, crossing: Crossing) -> Described:
        """What a trace is told apart by, beside the types of arrays: its static values are the leaves."""
        ...

    def meant(self, crossing: Crossing) -> frozenset[Path]:
        """The arguments that the user has said to be static as a whole."""
        ...

    def describe(self, tree: Any, root: str) -> Described:
        """What must not change of a tree that is carried; `root` is what it is called."""
        ...

    def describe_outcome(self, crossing: Crossing, outcome: Any, groups: Groups) -> Described:
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
