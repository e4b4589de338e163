"""Boundaries: how values cross into a transform and out again.

A call is taken apart into a structure and dynamic leaves, and the rule says where each leaf *rides*. Leaves that ride
alike form a *lane*, and lanes are all that JAX sees: a flat tuple of arrays each. A `Crossing` is how a call goes in, a
`Departure` where what the function returns may go, and a `Boundary` does both for one semantics of objects.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import jax
from weft.core.edge.trees import PyTree
from weft.core.errors import AxisError
from weft.core.interpreter.rides import Read, Ride
from weft.core.memory import live
from weft.core.paths import Path, format_path
from weft.core.records.agree import Described
from weft.core.records.aliases import Repeats
from weft.core.records.draws import Kept

Function = Callable[..., PyTree]
Call = tuple[tuple[Function, ...], tuple[PyTree, ...], Mapping[str, PyTree]]
Groups = tuple[tuple[PyTree, ...], ...]
# Where a leaf left: its lane (those of the output, then those of updates), and its place there.
Place = tuple[int, int]
# How a call rides, as a prefix of it; None: all alike, as the rule reads None.
Arrival = tuple[PyTree, PyTree, PyTree] | None
_IN_A_LANE = re.compile(r"\bweft_lanes\[(\d+)\]\[(\d+)\]")


def parameter_names(function: Function) -> tuple[str, ...]:
    """The names of a function's positional parameters, as far as they can be told."""
    function = live(function)
    # Read off the code where there is some: `inspect.signature` is slow, and a cache would keep closures alive.
    plain = inspect.unwrap(function) if isinstance(function, types.FunctionType) else function
    if isinstance(plain, types.FunctionType):
        return plain.__code__.co_varnames[: plain.__code__.co_argcount]
    try:
        parameters = inspect.signature(plain).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


class CallStructure(Protocol):
    """What a call was taken apart into, without its arrays: hashable, and equal for calls of equal make."""

    def path_of(self, position: int) -> Path:
        """Where a dynamic leaf of the arguments is, from the parameter's name on, for errors."""
        ...

    def described(self) -> Described:
        """What a trace is told apart by, beside the types of arrays: its static values are the leaves."""
        ...

    def meant(self) -> frozenset[Path]:
        """The arguments that the user has said to be static as a whole."""
        ...

    def sparse(self, values: Mapping[int, PyTree]) -> Call:
        """The call's trees with values at some leaves and nothing elsewhere: how (co)tangents are given."""
        ...

    def read_sparse(self, call: Call) -> list[PyTree]:
        """The inverse of `sparse`: for each dynamic leaf its value, or None."""
        ...


class Outcome(Protocol):
    """What a function returned and did, without the arrays. Hashable: it rides in a tree definition."""

    @property
    def updates(self) -> Sequence[tuple[int, int, int]]:
        """(leaf, lane, place) for each leaf of the arguments that is updated; lanes as in `Place`."""
        ...

    @property
    def updated(self) -> frozenset[int]:
        """The positions of the arguments' leaves that are updated, or may be."""
        ...

    @property
    def replaced(self) -> frozenset[int]:
        """The positions of the arguments' leaves that are arrays of their own, and in whose places others are now."""
        ...

    def forwarding(self, untouched: Mapping[Place, int]) -> Self:
        """The outcome in which arrays of the output are the arguments' own: the positions of these, by place."""
        ...

    def sparse(self, values: Sequence[PyTree]) -> PyTree:
        """A tree like the output, with values at what rides in its first lane: how output (co)tangents are given."""
        ...

    def read_sparse(self, tree: PyTree) -> list[PyTree]:
        """The inverse of `sparse`: for each leaf of that lane its value, or None."""
        ...


# What a call was taken apart into, and what is known of a return, under one boundary.
S = TypeVar("S", bound=CallStructure)
R = TypeVar("R", bound=Outcome)
# What a boundary keeps of a call: of the caller's own objects for `hand_over`, and of the live call for `leave`.
E = TypeVar("E")
M = TypeVar("M")


@dataclass(frozen=True)
class Crossing(Generic[S]):
    """How a call crosses into a transform, without its arrays.

    Attributes:
        structure: what the boundary took the call apart into.
        rides: the ride of each dynamic leaf.
        lanes: the distinct rides, in the order in which the transform sees them.
        repeats: which leaves are one array; see `records.aliases`.
    """

    structure: S
    rides: tuple[Ride, ...]
    lanes: tuple[Ride, ...]
    repeats: Repeats = ()

    def __hash__(self) -> int:
        # The rides of a thousand leaves are compared, which mostly is by identity, but not hashed.
        return hash((self.structure, self.lanes))

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

    @functools.cached_property
    def draws(self) -> Kept:
        """What its traces draw from outside, under `debug_keys`."""
        return {}

    def group(self, values: Sequence[PyTree]) -> Groups:
        """Leaf values, by lane."""
        groups: list[list[PyTree]] = [[] for _ in self.lanes]
        for value, (lane, _) in zip(values, self.places, strict=True):
            groups[lane].append(value)
        return tuple(map(tuple, groups))

    def ungroup(self, groups: Groups) -> list[PyTree]:
        """Leaf values in order, from lanes."""
        return [groups[lane][place] for lane, place in self.places]

    def name_lanes(self, error: Exception) -> None:
        """Puts the paths of arguments into an error of JAX's, which knows them by their places in lanes."""

        def path(place: re.Match[str]) -> str:
            return format_path(self.structure.path_of(self.places.index((int(place[1]), int(place[2])))))

        if len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (_IN_A_LANE.sub(path, error.args[0]),)


@dataclass(frozen=True)
class Departure:
    """Where what a function returns may go, and what it changed in its arguments.

    Attributes:
        prefix: how the output rides, as a prefix of it.
        lanes: the distinct rides that an output leaf can have.
        update_lanes: the distinct rides that something changed can have.
        read: what a node of the prefix means.
        option: what the prefix is called in the user's call, for errors.
        arrive: how a call rides, as a prefix of it, for what is new in an argument.
        updated: the positions of the leaves that count as updated, where that was learned beforehand; None: those that
            changed.
        replaced: likewise of the arrays in whose places there are others: they leave with the arguments' structure.
    """

    prefix: PyTree
    lanes: tuple[Ride, ...]
    update_lanes: tuple[Ride, ...]
    read: Read
    option: str
    arrive: Callable[[Call], Arrival]
    updated: frozenset[int] | None = None
    replaced: frozenset[int] = frozenset()


class OutLanes:
    """The lanes of one end of a function, under construction: those of its output, then those of updates."""

    def __init__(self, departure: Departure):
        self._departure = departure
        self._groups: list[list[PyTree]] = [[] for _ in (*departure.lanes, *departure.update_lanes)]
        # Found by identity once a ride has been looked up: a thousand leaves may leave on one. The ride is kept with
        # its lane, so that its identity stays its own.
        self._outputs: dict[int, tuple[int, Ride]] = {}
        self._updates: dict[int, tuple[int, Ride]] = {}

    def output(self, ride: Ride, value: PyTree, path: Callable[[], str]) -> Place:
        """Puts a leaf of the output into the lane of its ride, and says where it is.

        Raises:
            AxisError: if it cannot leave so.
        """
        found = self._outputs.get(id(ride))
        if found is None:
            found = self._outputs[id(ride)] = self._lane_of_output(ride, value, path), ride
        return self._put(*found, value, path)

    def update(self, ride: Ride | None, value: PyTree, path: Callable[[], str]) -> Place:
        """Puts something changed, or new in an argument, into the lane of its ride, and says where it is.

        Raises:
            AxisError: if it cannot leave so.
        """
        found = self._updates.get(id(ride))
        if found is None:
            found = self._lane_of_update(ride, path)
            self._updates[id(ride)] = found
        return self._put(*found, value, path)

    def replace(self, place: Place, value: PyTree) -> Place:
        """Puts another value where one is."""
        lane, index = place
        self._groups[lane][index] = value
        return place

    def finished(self) -> tuple[Groups, Groups]:
        """The lanes of the output, and those of updates."""
        groups, outputs = tuple(map(tuple, self._groups)), len(self._departure.lanes)
        return groups[:outputs], groups[outputs:]

    def _put(self, lane: int, ride: Ride, value: PyTree, path: Callable[[], str]) -> Place:
        # Of each value, not once for the lane: only a value shows whether it is mapped.
        ride.refuse(value, path)
        group = self._groups[lane]
        group.append(value)
        return lane, len(group) - 1

    def _lane_of_output(self, ride: Ride, value: PyTree, path: Callable[[], str]) -> int:
        lanes, option = self._departure.lanes, self._departure.option
        if ride.refused is not None:
            raise AxisError(
                f"{option} gives {ride} to an output that changes",
                at=f"{path()}: {_type_of(value)}",
                fix=ride.refused,
            )
        if ride not in lanes:
            raise AxisError(
                f"{option} gives {ride} to an array, which can ride on no such thing",
                at=f"{path()}: {_type_of(value)}",
                fix=f"give it what {option} takes, or a prefix of the output's own structure",
            )
        return lanes.index(ride)

    def _lane_of_update(self, ride: Ride | None, path: Callable[[], str]) -> tuple[int, Ride]:
        lanes, option = self._departure.update_lanes, self._departure.option
        if ride is not None and ride.refused is not None:
            raise AxisError(f"something changes that cannot leave on {option} {ride}", at=path(), fix=ride.refused)
        if ride is None or ride not in lanes:
            raise AxisError(
                "something new in an argument cannot leave, because updates of that argument do not come back",
                at=path(),
                fix="carry the argument or give it an axis, or return what is new",
            )
        return len(self._departure.lanes) + lanes.index(ride), ride


def _type_of(value: PyTree) -> str:
    # In a graph's Variable one leaf may be a tree.
    return ", ".join(str(jax.typeof(leaf)) for leaf in jax.tree.leaves(value))


class Packed(Hashable, Protocol):
    """The structure of a tree that was taken apart by itself."""

    def build(self, leaves: Sequence[PyTree], /) -> PyTree:
        """The tree again, of fresh objects around these leaves."""
        ...


class QuickWay(NamedTuple):
    """The quick way in and out, for calls of one make that was seen before.

    Attributes:
        extract: from a call to (what `hand_over` needs, leaf values, lanes), or to None if it is of another make.
        hand_over: as `Boundary.hand_over`, for an outcome that is expected again.
    """

    extract: Callable[[Call], tuple[Any, Sequence[PyTree], Groups] | None]
    hand_over: Callable[[Any, Any, Sequence[PyTree], Groups], PyTree]


class Boundary(Protocol[S, R, E, M]):
    """How values cross into a transform and out again. There are three: values, threaded parts, references."""

    name: str
    # The package whose transform the user called, in whose words errors speak: `weft`, or `nnx`.
    layer: str
    # Whether arguments can be updated at all.
    has_updates: bool
    # Whether arguments are objects that are told apart by identity, rather than records.
    has_identity: bool
    # Whether annotations are contracts even where they name no shape; see `hooks.ContractHook.call`.
    typed: bool
    # Whether what is learned of a function in one transformed form serves in another; see `memory`.
    shares: bool
    # Whether a function may put new things into its arguments.
    restructures: bool

    def enter(self, call: Call) -> tuple[S, Sequence[Any], E]:
        """Takes a call apart: its structure, its dynamic leaves (with `path` and `value`), and what `hand_over` needs
        of the caller's own objects."""
        ...

    def rides(
        self, prefix: Arrival, call: Call, entered: E, leaves: Sequence[Any], read: Read, what: str
    ) -> list[Ride]:
        """The ride of each leaf, by a prefix of the call; `entered` is what `enter` gave for `hand_over`."""
        ...

    def rebuild(self, crossing: Crossing[S], values: Sequence[PyTree]) -> tuple[Call, M]:
        """The live call, with the values that the transform gives, and what `leave` needs to remember of it."""
        ...

    def may_update(self, crossing: Crossing[S]) -> bool:
        """Whether this call has arguments that a function could update."""
        ...

    def describe(self, tree: PyTree, root: str) -> Described:
        """What must not change of a tree that is carried; `root` is what it is called."""
        ...

    def describe_outcome(self, crossing: Crossing[S], outcome: R, groups: Groups) -> Described:
        """What must not differ between the outputs of branches."""
        ...

    def pack(self, tree: PyTree) -> tuple[Packed, tuple[PyTree, ...]]:
        """Any tree as a structure and arrays, to be carried through JAX as it is."""
        ...

    def leave(
        self, crossing: Crossing[S], values: Sequence[PyTree], live: Call, memory: M, out: PyTree, departure: Departure
    ) -> tuple[Groups, Groups, R]:
        """Takes an output apart into lanes, and what changed in the arguments; and gives the outcome."""
        ...

    def hand_over(self, entered: E, outcome: R, values: Sequence[PyTree], groups: Groups) -> PyTree:
        """Gives the caller the output, and writes updates if there are any; `groups` are the lanes of both."""
        ...

    def quick_way(self, crossing: Crossing[S], entered: E, call: Call) -> QuickWay | None:
        """The quick way for calls of the make of this one; None if it would not pay."""
        ...


# Either of them, for what works with both.
AnyBoundary = Boundary[Any, Any, Any, Any]
AnyCrossing = Crossing[Any]
