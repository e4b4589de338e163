"""Prefixes: how users say where each leaf of a tree rides.

A *prefix* is a tree that stops early, whose leaves hold for everything below (`in_axes=(None, 0)`), and in which
`axes({BatchStat: None, ...: 0})` gives one ride for each kind. Its nodes are what users write (an axis, a spec,
`Carry`); what they mean to a transform is read by its rule (`rides.Read`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import jax
from weft.core.edge import trees
from weft.core.edge.trees import KeyPath, PyTree
from weft.core.errors import AxisError, FilterError
from weft.core.interpreter.rides import Read, Ride, read_with
from weft.core.paths import format_path
from weft.core.records.configuration import is_stored, spelled_out
from weft.core.records.filters import Any as AnyOf
from weft.core.records.filters import Filter, Inside, InstanceOf, PathContains, WithTag, format_filter
from weft.core.records.leaves import Leaf
from weft.core.records.sorting import sort_leaves


def distinct(rides: Iterable[Ride]) -> tuple[Ride, ...]:
    """Rides, each once, in the order in which they come."""
    # By identity first: there may be a thousand leaves on two rides, and only the first of each need be hashed.
    return tuple(dict.fromkeys({id(ride): ride for ride in rides}.values()))


@dataclass(frozen=True)
class RidesByKind:
    """A prefix leaf that gives one ride for each filter; made by `axes` and `specs`."""

    rides: tuple[tuple[Filter, Any], ...]
    # Whether a filter may match no leaf: not where a user wrote it for these leaves.
    optional: ClassVar[bool] = False

    def of_array(self, value: object) -> object:
        """The ride of an array that is an argument of its own, where filters are about what is inside of objects; None
        if it has none."""
        return None

    def __repr__(self) -> str:
        return f"axes({_by_filter(self.rides)})"


def _by_filter(rides: Iterable[tuple[Filter, Any]]) -> str:
    written = ((format_filter(filter), ride.as_written if isinstance(ride, Ride) else ride) for filter, ride in rides)
    return f"{{{', '.join(f'{filter}: {ride!r}' for filter, ride in written)}}}"


def axes(by_kind: Mapping[Filter, object]) -> RidesByKind:
    """Axes, specs or shardings by kind, for one argument: `in_axes=(axes({BatchStat: None, ...: 0}), 0)`.

    Where a filter cannot say it, a record that holds axes serves as a prefix too. Make it of the record that it is for,
    `model.replace(weight=0, bias=None)` or `jax.tree.map(lambda _: 0, model)`: a constructor would check that its
    fields are arrays.

    Args:
        by_kind: from filter to ride, tried in order.

    Raises (when the transform is called):
        AxisError: if a filter matches no leaf, or a leaf matches no filter.

    >>> import jax.numpy as jnp
    >>> from weft import BatchNorm, BatchStat, vmap
    >>> norms = vmap(lambda scale: BatchNorm(2).replace(scale=scale))(jnp.ones((3, 2)))
    >>> norms = norms.replace(mean=norms.mean[0], var=norms.var[0])
    >>> vmap(lambda norm, x: norm(x, inference=True)[0], in_axes=(axes({BatchStat: None, ...: 0}), None))(
    ...     norms, jnp.ones((4, 2))
    ... ).shape
    (3, 4, 2)
    """
    return RidesByKind(tuple(by_kind.items()))


def resolve(
    prefix: PyTree,
    tree: PyTree,
    leaves: Sequence[Leaf],
    read: Read,
    *,
    what: str,
    statics: Container[int] = (),
    depth: int = 0,
) -> list[Ride]:
    """The ride of each dynamic leaf of a tree, from a prefix.

    Args:
        prefix: a tree prefix whose leaves say how things ride, or `RidesByKind`.
        tree: what it is a prefix of.
        leaves: the dynamic leaves of `tree`, in order.
        read: what a node of the prefix means: a ride, unless it is a container.
        what: the option's name, for errors (`in_axes`).
        statics: the positions of the leaves of `tree` that are not dynamic.
        depth: how deep in `tree` the trees lie whose paths filters see: a call's arguments, for one.

    Raises:
        AxisError: if the prefix does not fit the tree, or a spec by kind does not fit its leaves.
    """
    ride = read(prefix)
    if ride is not None:
        return [ride] * len(leaves)
    if isinstance(prefix, RidesByKind):
        return _by_kind(prefix, leaves, read, what)

    def stops(node: object) -> bool:
        return isinstance(node, RidesByKind | _Placed) or read(node) is not None

    def placed(keys: KeyPath, node: object) -> object:
        return _Placed(node, max(0, len(keys) - depth)) if isinstance(node, RidesByKind) else node

    all_rides = _spread(prefix, tree, stops, placed, ())
    if all_rides is None:
        try:
            prefix_placed = jax.tree_util.tree_map_with_path(placed, prefix, is_leaf=stops)
            all_rides = _broadcast(prefix_placed, tree, stops, lambda _: False)
        except ValueError as error:
            # Of the three parts of a call, whose prefix is the deep one, users write that of the arguments.
            raise _does_not_fit(what, prefix[1] if depth else prefix, error) from None
    # A prefix gives a ride to static leaves too; keep those of the dynamic ones.
    chosen = [node for i, node in enumerate(all_rides) if i not in statics]
    # Together for all leaves of one place in the prefix: a filter has to match something there, not at every leaf.
    members: dict[int, list[int]] = {}
    for i, node in enumerate(chosen):
        members.setdefault(id(node), []).append(i)
    result: list[Any] = [None] * len(chosen)
    for places in members.values():
        node = chosen[places[0]]
        if isinstance(node, _Placed):
            # A filter is about the tree that it was given for, and sees paths that begin there.
            there = [replace(leaves[i], root=leaves[i].root + node.below) for i in places]
            rides = _by_kind(node.spec, there, read, what)
        else:
            rides = [read_with(read, node)] * len(places)
        for i, ride in zip(places, rides, strict=True):
            result[i] = ride
    return result


def _spread(
    prefix: PyTree,
    tree: PyTree,
    stops: Callable[[object], bool],
    placed: Callable[[KeyPath, object], object],
    keys: KeyPath,
) -> list[object] | None:
    """The node of the prefix for each leaf of a tree; None where anything but plain containers is above such a node.

    Most prefixes are a tuple with one entry for each argument. JAX would ask of every node whether to stop there.
    """
    kind: Any = cast("type[Any]", type(prefix))
    if kind not in (tuple, list, dict):
        return [placed(keys, prefix)] * trees.structure(tree).num_leaves if stops(prefix) else None
    is_dict = kind is dict
    if cast("type[Any]", type(tree)) is not kind or len(prefix) != len(tree) or (is_dict and {*prefix} != {*tree}):
        return None
    spread: list[object] = []
    for key in sorted(prefix) if is_dict else range(len(prefix)):
        below = _spread(prefix[key], tree[key], stops, placed, (*keys, key))
        if below is None:
            return None
        spread += below
    return spread


@dataclass(frozen=True, eq=False)
class _Placed:
    """Rides by kind, at one place of a prefix: so many steps below the tree at which leaves' paths begin."""

    spec: RidesByKind
    below: int


def _does_not_fit(what: str, prefix: PyTree, error: ValueError) -> AxisError:
    """Says that a prefix does not fit; the likely reason is a dict by kind that is not marked as one."""
    refuse_by_kind(prefix, what)
    fix = "give one ride for a whole argument, or a tree of the argument's own structure"
    return AxisError(f"{what} does not fit: {error}", at=f"{what}={prefix!r}", fix=fix)


def refuse_by_kind(prefix: PyTree, what: str, marker: str = "weft.axes", least: int = 1) -> None:
    """Refuses a dict by kind that is not marked as one. Not as a tree: JAX would have to sort its keys, and cannot.

    Args:
        prefix: of a call or an output.
        what: the option's name.
        marker: what marks such a dict.
        least: how many keys it has at least. An argument may be a dict with one class for a key, but not with two.

    Raises:
        AxisError: saying what to write.
    """
    if isinstance(prefix, dict):
        by_kind = cast("dict[Any, Any]", prefix)
        if len(by_kind) >= least and any(key is ... or isinstance(key, _FILTERS) for key in by_kind):
            raise AxisError(
                f"{what} has a dict by kind where a tree is expected: a plain dict stands for an argument that is a "
                "dict",
                at=f"{what}: {_by_filter(by_kind.items())}",
                fix=f"say that it is about kinds: {marker}({_by_filter(by_kind.items())})",
            )
        prefix = tuple(by_kind.values())
    for part in cast("Sequence[Any]", prefix) if isinstance(prefix, tuple | list) else ():
        refuse_by_kind(part, what, marker, least)


_FILTERS = (type, InstanceOf, Inside, PathContains, WithTag, AnyOf)


def resolve_nodes(prefix: PyTree, tree: PyTree, is_node: Callable[[object], bool], read: Read) -> list[Ride]:
    """The ride of each node (or leaf) of a tree, where `is_node` says which nodes to stop at."""
    nodes = _broadcast(prefix, tree, lambda node: read(node) is not None, is_node)
    return [read_with(read, node) for node in nodes]


def _broadcast(
    prefix: PyTree, tree: PyTree, stops: Callable[[object], bool], is_node: Callable[[object], bool]
) -> list[object]:
    configured = any(is_stored(leaf) for leaf in trees.flatten(prefix, lambda node: is_stored(node) or stops(node))[0])
    if configured:
        # A record in the prefix: how an array rides (`model.replace(weight=0)`) is configuration to it.
        prefix, tree = spelled_out(prefix), spelled_out(tree, _Configured)
    # Not `jax.tree.broadcast`: it builds a tree of rides, and a node of another library may take arrays only.
    rides, definition = trees.flatten(prefix, stops)
    parts = definition.flatten_up_to(tree)
    return [
        ride
        for ride, part in zip(rides, parts, strict=True)
        for leaf in trees.flatten(part, is_node)[0]
        if type(leaf) is not _Configured
    ]


class _Configured:
    """Marks what is configuration in a tree that is spelled out: nothing rides there."""

    __slots__ = ()

    def __init__(self, value: object):
        pass


def _by_kind(spec: RidesByKind, leaves: Sequence[Leaf], read: Read, what: str) -> list[Ride]:
    try:
        places = sort_leaves(leaves, [filter for filter, _ in spec.rides], require_used=not spec.optional)
    except FilterError as error:
        raise AxisError(f"{what}: {error.what}", at=error.at, fix=error.fix) from None
    rides = [read_with(read, ride) for _, ride in spec.rides]
    return [rides[place] for place in places if place is not None]


def rides_in(prefix: PyTree, read: Read) -> list[Ride]:
    """All the rides that a prefix mentions."""
    found: list[Ride] = []
    for leaf in _prefix_leaves(prefix, read):
        if isinstance(leaf, RidesByKind):
            found += [read_with(read, ride) for _, ride in leaf.rides]
        elif (ride := read(leaf)) is not None:
            found.append(ride)
        # What else is in a record's places is its configuration, where nothing rides.
    return found


def depends_on_leaves(prefix: PyTree, read: Read) -> bool:
    """Whether a prefix gives rides by kind, and so by more than a call's structure: a kind may come from a dtype."""
    return any(isinstance(leaf, RidesByKind) for leaf in _prefix_leaves(prefix, read))


def _prefix_leaves(prefix: PyTree, read: Read) -> list[object]:
    if type(prefix) in (tuple, list):
        return [leaf for part in cast("Sequence[PyTree]", prefix) for leaf in _prefix_leaves(part, read)]

    def stops(node: object) -> bool:
        return isinstance(node, RidesByKind) or read(node) is not None

    # A record in the prefix keeps its rides as configuration.
    return [prefix] if stops(prefix) else jax.tree.leaves(spelled_out(prefix), is_leaf=stops)


def mapped_size(leaves: Sequence[Leaf], axes: Sequence[int | None], *, given: int | None, what: str) -> int | None:
    """The size of the axis that leaves are mapped over.

    Args:
        leaves: dynamic leaves with their values.
        axes: an axis for each, or None where it is not mapped.
        given: the size the user gave, if any.
        what: the transform's name, for errors.

    Raises:
        AxisError: if an axis is out of range, or the sizes differ: all offenders with path, shape and size.
    """
    # Of shapes alone, since a path is written for an error only. A leaf may be a tree, in a graph's Variable.
    mapped: list[tuple[Leaf, int, tuple[int, ...]]] = [
        (leaf, axis, getattr(value, "shape", ()))
        for leaf, axis in zip(leaves, axes, strict=True)
        if axis is not None
        for value in jax.tree.leaves(leaf.value)
    ]

    def places(is_meant: Callable[[int, tuple[int, ...]], bool], ending: str = "") -> list[str]:
        return [
            f"{format_path(leaf.path)}: axis {axis} of shape {shape}" + (ending and f"{ending}{shape[axis]}")
            for leaf, axis, shape in mapped
            if is_meant(axis, shape)
        ]

    # First, because an axis that is not there has no size to differ in.
    wrong = places(lambda axis, shape: not -len(shape) <= axis < len(shape))
    if wrong:
        raise AxisError(
            f"{what} is given an axis that these arguments do not have",
            at=wrong,
            fix="map them over None, or give them the axis",
        )
    sizes = {shape[axis] for _, axis, shape in mapped}
    if given is not None and sizes - {given}:
        raise AxisError(
            f"{what} got arguments whose mapped axes differ from the size given, {given}",
            at=list(dict.fromkeys(places(lambda axis, shape: shape[axis] != given, " has size "))),
            fix="map them over None, or correct the size",
        )
    if len(sizes) > 1:
        raise AxisError(
            f"{what} got arguments with inconsistent sizes on their mapped axes: {', '.join(map(str, sorted(sizes)))}",
            at=list(dict.fromkeys(places(lambda axis, shape: True, " has size "))),
            fix="make the sizes agree, or map the odd ones over None",
        )
    return next(iter(sizes), given)


def subtrees(prefix: PyTree, tree: PyTree, read: Read, wanted: Ride) -> list[PyTree]:
    """The parts of a tree that ride in one way, by a prefix."""
    ride = read(prefix)
    if ride is not None:
        return [tree] if ride == wanted else []
    if type(prefix) in (tuple, list) and type(tree) is type(prefix) and len(prefix) == len(tree):
        pairs = zip(prefix, tree, strict=True)
        return [found for one, part in pairs for found in subtrees(one, part, read, wanted)]
    if wanted not in rides_in(prefix, read):
        return []
    nodes, definition = trees.flatten(prefix, lambda node: read(node) is not None)
    try:
        parts = definition.flatten_up_to(tree)
    except ValueError as error:
        raise _does_not_fit("the prefix of a carry", prefix, error) from None
    return [part for node, part in zip(nodes, parts, strict=True) if read(node) == wanted]
