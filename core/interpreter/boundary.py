"""Boundaries: how values cross into a transform and out again.

A call is flattened into a structure and dynamic leaves, and the rule says how each leaf *rides*. Leaves that ride alike
form a *lane*, and lanes are all that JAX sees: a flat tuple of arrays each. A `Crossing` says how a call's leaves enter
the transform, a `Departure` how the function's outputs and updates may leave it, and a `Boundary` does both for one
semantics of objects.
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
from weft.core.memory import Recent, live
from weft.core.paths import Path, format_path
from weft.core.records.agree import TreeDescription
from weft.core.records.draws import TraceDraws
from weft.core.records.leaves import Repeats

Function = Callable[..., PyTree]
Call = tuple[tuple[Function, ...], tuple[PyTree, ...], Mapping[str, PyTree]]
Groups = tuple[tuple[PyTree, ...], ...]
# Where a leaf left: the index of its lane (lanes of the output come first, then lanes of updates), and its index there.
Place = tuple[int, int]
# The rides of a call, as a tree prefix of it. None: every leaf rides as the rule reads None.
Arrival = tuple[PyTree, PyTree, PyTree] | None
_IN_A_LANE = re.compile(r"\bweft_lanes\[(\d+)\]\[(\d+)\]")


def parameter_names(function: Function) -> tuple[str, ...]:
    """The names of a function's positional parameters; empty if Python cannot inspect the function."""
    function = live(function)
    # Read from the code object where there is one: `inspect.signature` is slow, and a cache of signatures by function
    # would keep closures, and the arrays in them, alive.
    plain = inspect.unwrap(function) if isinstance(function, types.FunctionType) else function
    if isinstance(plain, types.FunctionType):
        return plain.__code__.co_varnames[: plain.__code__.co_argcount]
    try:
        parameters = inspect.signature(plain).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


class CallStructure(Protocol):
    """The structure of a call, without its arrays: hashable, and equal for calls of equal structure."""

    @property
    def fields(self) -> Sequence[object]:
        """What a treedef does not tell: the types in the static fields of equinox's own records."""
        ...

    def path_of(self, position: int) -> Path:
        """The path of a dynamic leaf, which starts with the parameter's name; for errors."""
        ...

    def described(self) -> TreeDescription:
        """What a trace is keyed on except the avals of arrays; the leaves of the description are static values."""
        ...

    def meant(self) -> frozenset[Path]:
        """The paths of the arguments that the user declared static, with `static_argnums` or `static_argnames`."""
        ...

    def sparse(self, values: Mapping[int, PyTree]) -> Call:
        """The call's trees with values at some leaves and None at the others: users pass (co)tangents like this."""
        ...

    def read_sparse(self, call: Call) -> list[PyTree]:
        """The inverse of `sparse`: for each dynamic leaf its value, or None."""
        ...


class Outcome(Protocol):
    """What a function returned and updated, without the arrays. It is hashable because a treedef carries it."""

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
        """The positions of leaves of the arguments that are arrays themselves and that the function has replaced."""
        ...

    def forwarding(self, untouched: Mapping[Place, int]) -> Self:
        """This outcome with some outputs forwarded from the arguments: `untouched` maps a place to the argument's
        position."""
        ...

    def sparse(self, values: Sequence[PyTree]) -> PyTree:
        """A tree like the output, with values at the leaves of its first lane: users pass output (co)tangents so."""
        ...

    def read_sparse(self, tree: PyTree) -> list[PyTree]:
        """The inverse of `sparse`: for each leaf of the first lane its value, or None."""
        ...


# The structure of a call, and the outcome of one, under a boundary.
S = TypeVar("S", bound=CallStructure)
R = TypeVar("R", bound=Outcome)
# What a boundary remembers during a call: of the caller's objects for `hand_over`, and of the live call for `leave`.
E = TypeVar("E")
M = TypeVar("M")


@dataclass(frozen=True)
class Crossing(Generic[S]):
    """How a call enters a transform, without its arrays: the cache key of the lifted function.

    Attributes:
        structure: the structure of the call.
        rides: the ride of each dynamic leaf.
        lanes: the distinct rides, in the order in which the transform sees them.
        repeats: which leaves are the same array; see `records.leaves`.
    """

    structure: S
    rides: tuple[Ride, ...]
    lanes: tuple[Ride, ...]
    repeats: Repeats = ()

    def __hash__(self) -> int:
        # Without the rides: to hash a thousand of them at each call is slow, to compare them is mostly a test of
        # identity.
        return hash((self.structure, self.lanes))

    @functools.cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """For each leaf its lane and its place in the lane."""
        sizes = [0] * len(self.lanes)
        # The lanes are distinct, and there are only a few, so that this dict finds the lane of a ride in one step.
        index = {lane: i for i, lane in enumerate(self.lanes)}
        places: list[tuple[int, int]] = []
        for ride in self.rides:
            lane = index[ride]
            places.append((lane, sizes[lane]))
            sizes[lane] += 1
        return tuple(places)

    @functools.cached_property
    def loud(self) -> tuple[Ride, ...]:
        """The rides on which leaves leave though they have not changed, each object of equal ones."""
        return tuple([r for r in {id(r): r for r in self.rides}.values() if r.always_leaves or r.gives_away])

    @functools.cached_property
    def draws(self) -> TraceDraws:
        """The keys from outside that its traces draw from, under `debug_keys`."""
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
        """Replaces `weft_lanes[0][3]` in the text of a JAX error by the path of the argument that lies there.

        The lanes in an error about a traced value are those of the trace that the value belongs to. That may be an
        outer one, so such an error is left as it is: `explain_traced` names its argument.
        """

        def path(place: re.Match[str]) -> str:
            return format_path(self.structure.path_of(self.places.index((int(place[1]), int(place[2])))))

        if isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
            return
        # Only an error whose text is its one argument: others build their text from arguments of other types.
        if len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (_IN_A_LANE.sub(path, error.args[0]),)


@dataclass(frozen=True)
class Departure:
    """How the outputs of a function, and the updates of its arguments, may leave the transform.

    Attributes:
        prefix: the rides of the output, as a tree prefix of it.
        lanes: the distinct rides that an output leaf can have.
        update_lanes: the distinct rides that an updated leaf can have.
        read: turns a node of the prefix into a ride.
        option: the name of the prefix in the user's call (`out_axes`), for errors.
        arrive: gives the rides of a call, as a prefix of it; a value that is new in an argument leaves on the ride
            there.
        updated: the positions of the leaves that leave as updates, if an abstract evaluation has learned them before;
            None: the leaves that changed.
        replaced: the positions of array arguments that the function replaces, learned in the same way; they leave with
            the arguments' structure.
    """

    prefix: PyTree
    lanes: tuple[Ride, ...]
    update_lanes: tuple[Ride, ...]
    read: Read
    option: str
    arrive: Callable[[Call], Arrival]
    updated: frozenset[int] | None = None
    replaced: frozenset[int] = frozenset()

    @functools.cached_property
    def known(self) -> Recent[Hashable, Any]:
        """What boundaries remember of outputs, by their structure: a function that is traced again returns the same."""
        return Recent[Hashable, Any](8)


class OutLanes:
    """Collects the leaves that leave a function into lanes: the lanes of its output, then those of updates."""

    def __init__(self, departure: Departure):
        self._departure = departure
        self._groups: list[list[PyTree]] = [[] for _ in (*departure.lanes, *departure.update_lanes)]
        # The lane of each ride, by the ride's id: a thousand leaves may share one ride, which need not be hashed for
        # each of them. The ride is stored too, so that no other object gets its id while this is alive.
        self._outputs: dict[int, tuple[int, Ride]] = {}
        self._updates: dict[int, tuple[int, Ride]] = {}

    def output(self, ride: Ride, value: PyTree, path: Callable[[], str]) -> Place:
        """Puts a leaf of the output into the lane of its ride, and returns its place.

        Raises:
            AxisError: if it cannot leave on this ride.
        """
        known = self._outputs.get(id(ride))
        if known is None:
            known = self._outputs[id(ride)] = self._lane_of_output(ride, value, path), ride
        return self._put(*known, value, path)

    def update(self, ride: Ride | None, value: PyTree, path: Callable[[], str]) -> Place:
        """Puts a changed leaf, or one that is new in an argument, into the lane of its ride, and returns its place.

        Raises:
            AxisError: if it cannot leave on this ride.
        """
        known = self._updates.get(id(ride))
        if known is None:
            known = self._updates[id(ride)] = self._lane_of_update(ride, path)
        return self._put(*known, value, path)

    def replace(self, place: Place, value: PyTree) -> Place:
        """Replaces the value at a place."""
        lane, index = place
        self._groups[lane][index] = value
        return place

    def finished(self) -> tuple[Groups, Groups]:
        """The lanes of the output, and those of updates."""
        groups, outputs = tuple(map(tuple, self._groups)), len(self._departure.lanes)
        return groups[:outputs], groups[outputs:]

    def _put(self, lane: int, ride: Ride, value: PyTree, path: Callable[[], str]) -> Place:
        # For each value, not once for the lane: whether a tracer is batched shows in the tracer alone.
        ride.refuse(value, path)
        group = self._groups[lane]
        group.append(value)
        return lane, len(group) - 1

    def _lane_of_output(self, ride: Ride, value: PyTree, path: Callable[[], str]) -> int:
        lanes, option = self._departure.lanes, self._departure.option
        # A refused ride is in the lanes too: an argument on None of a scan may be returned, but only unchanged, and
        # then it was forwarded and does not come here.
        if ride.refused is not None:
            raise AxisError(
                f"{option} gives {ride} to an output that the function has computed",
                at=f"{path()}: {_type_of(value)}",
                fix=ride.refused,
            )
        if ride not in lanes:
            raise AxisError(
                f"{option} gives {ride} to an array, which {option} does not accept",
                at=f"{path()}: {_type_of(value)}",
                fix=f"give it what {option} takes, or a prefix of the output's own structure",
            )
        return lanes.index(ride)

    def _lane_of_update(self, ride: Ride | None, path: Callable[[], str]) -> tuple[int, Ride]:
        lanes, option = self._departure.update_lanes, self._departure.option
        if ride is not None and ride.refused is not None:
            raise AxisError(
                f"the function changes a leaf whose update cannot be returned under {option} {ride}",
                at=path(),
                fix=ride.refused,
            )
        if ride is None or ride not in lanes:
            raise AxisError(
                "the function puts a new value into an argument whose updates are not returned",
                at=path(),
                fix="carry the argument or give it an axis, or return the new value",
            )
        return len(self._departure.lanes) + lanes.index(ride), ride


def _type_of(value: PyTree) -> str:
    # The value of an NNX Variable may be a tree of arrays, which counts as one leaf.
    return ", ".join(str(jax.typeof(leaf)) for leaf in jax.tree.leaves(value))


class Packed(Hashable, Protocol):
    """The structure of a tree that was flattened on its own, outside of a call."""

    def build(self, leaves: Sequence[PyTree], /) -> PyTree:
        """Builds the tree of new objects around these leaves."""
        ...


HandOver = Callable[[Any, Any, Sequence[PyTree], Groups], PyTree]


class QuickWay(NamedTuple):
    """Generated functions that flatten a call and build its result, for a call structure that was seen before.

    Attributes:
        extract: from a call to (what `hand_over` needs, leaf values, lanes), or to None if its structure differs.
        hand_over: as `Boundary.hand_over`; it caches the code that it generates for an outcome.
    """

    extract: Callable[[Call], tuple[Any, Sequence[PyTree], Groups] | None]
    hand_over: HandOver


class Boundary(Protocol[S, R, E, M]):
    """How values cross into a transform and out again. There are three boundaries: values, threaded parts,
    references."""

    name: str
    # The package whose transform the user called, `weft` or `nnx`: errors use its words.
    layer: str
    # Whether arguments can be updated at all.
    has_updates: bool
    # Whether arguments are objects that are told apart by identity, rather than records.
    has_identity: bool
    # Whether annotations are contracts even where they name no shape; see `hooks.ContractHook.enter`.
    typed: bool
    # Whether plans are shared between transformed forms of one function, as `jax.jit` does; see `memory`.
    shares: bool
    # Whether a function may put new things into its arguments.
    restructures: bool

    def enter(self, call: Call, known: Any = None) -> tuple[S, Sequence[Any], E]:
        """Flattens a call: its structure, its dynamic leaves (with `path` and `value`), and what `hand_over` needs of
        the caller's objects; `known` is what `recognise` has just returned of it for `hand_over`."""
        ...

    def recognise(self, call: Call) -> tuple[Hashable, Sequence[PyTree], E] | None:
        """A key by which a call like an earlier one is recognised, without describing its leaves; also the values of
        the leaves, and what `hand_over` needs, as `enter` returns them.

        Calls of one key have the same structure, leaves of the same shapes and dtypes, and the same aliases. None if
        this call has no such key.
        """
        ...

    def rides(
        self, prefix: Arrival, call: Call, entered: E, leaves: Sequence[Any], read: Read, option: str, /
    ) -> list[Ride]:
        """The ride of each leaf, by a prefix of the call; `entered` is what `enter` returned for `hand_over`, and
        `option` the prefix's name in the user's call."""
        ...

    def rebuild(self, crossing: Crossing[S], values: Sequence[PyTree]) -> tuple[Call, M]:
        """Builds the live call from the values inside the trace; also returns what `leave` needs of it."""
        ...

    def may_update(self, crossing: Crossing[S]) -> bool:
        """Whether this call has arguments that a function could update."""
        ...

    def describe(self, tree: PyTree, root: str) -> TreeDescription:
        """Describes what must stay the same in a carry (treedef, avals, statics); paths in it start with `root`."""
        ...

    def describe_outcome(self, crossing: Crossing[S], outcome: R, types: Groups) -> TreeDescription:
        """Describes what must be the same in the outputs of all branches."""
        ...

    def pack(self, tree: PyTree) -> tuple[Packed, tuple[PyTree, ...]]:
        """Flattens any tree into a structure and arrays, which JAX can carry."""
        ...

    def leave(
        self, crossing: Crossing[S], values: Sequence[PyTree], live: Call, memory: M, out: PyTree, departure: Departure
    ) -> tuple[Groups, Groups, R]:
        """Flattens the output, and the arguments' updates, into lanes; also returns the outcome."""
        ...

    def hand_over(self, entered: E, outcome: R, values: Sequence[PyTree], groups: Groups) -> PyTree:
        """Builds the output for the caller, and writes the updates; `groups` are the lanes of both."""
        ...

    def quick_way(self, crossing: Crossing[S], entered: E, call: Call) -> QuickWay | None:
        """Generated code for calls of this structure; None if generating it would cost more than it saves."""
        ...


# Any boundary, for code that works with all of them.
AnyBoundary = Boundary[Any, Any, Any, Any]
AnyCrossing = Crossing[Any]
