"""Prefixes: how users say where each leaf of a tree rides.

A *prefix* is a tree that stops early, whose leaves hold for everything below (`in_axes=(None, 0)`), and in which
`axes({BatchStat: None, ...: 0})` gives one ride for each kind. Its leaves are what users write (an axis, a spec,
`Carry`), which the transform's rule turns into rides (`rides.Read`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import jax
from weft.core.edge import trees
from weft.core.edge.trees import KeyPath, PyTree
from weft.core.errors import AxisError, FilterError
from weft.core.interpreter.rides import Read, Ride, axis_of, read_with
from weft.core.paths import format_path
from weft.core.records.configuration import is_stored, spelled_out
from weft.core.records.filters import Any as AnyOf
from weft.core.records.filters import (
    Filter,
    Inside,
    InstanceOf,
    PathContains,
    WithTag,
    format_filter,
    reads_values,
)
from weft.core.records.leaves import Leaf
from weft.core.records.sorting import sort_leaves


def distinct(rides: Iterable[Ride]) -> tuple[Ride, ...]:
    """The distinct rides, in the order of their first occurrence."""
    # By identity first: a thousand leaves may have two rides, and only these two need be hashed.
    return tuple(dict.fromkeys({id(ride): ride for ride in rides}.values()))


@dataclass(frozen=True)
class RidesByKind:
    """A prefix leaf that gives one ride for each filter; made by `axes` and `specs`."""

    rides: tuple[tuple[Filter, Any], ...]
    # Whether a filter may match no leaf. A filter that a user wrote for one argument may not: it is mostly misspelt.
    optional: ClassVar[bool] = False

    def of_array(self, value: object) -> object:
        """The ride of an argument that is an array itself, in subclasses whose filters are about the Variables of
        objects; None: arrays have no ride of their own."""
        return None

    def __repr__(self) -> str:
        return f"axes({_by_filter(self.rides)})"


def _by_filter(rides: Iterable[tuple[Filter, Any]]) -> str:
    written = ((format_filter(filter), ride.as_written if isinstance(ride, Ride) else ride) for filter, ride in rides)
    return f"{{{', '.join(f'{filter}: {ride!r}' for filter, ride in written)}}}"


def axes(by_kind: Mapping[Filter, object]) -> RidesByKind:
    """Axes, specs or shardings by kind, for one argument: `in_axes=(axes({BatchStat: None, ...: 0}), 0)`.

    Where filters are not enough, a record that holds axes is a prefix too. Make it from the argument's own record,
    `model.replace(weight=0, bias=None)` or `jax.tree.map(lambda _: 0, model)`: a constructor would refuse axes in
    fields that are annotated as arrays.

    Args:
        by_kind: a dict from filters to rides; a leaf has the ride of the first filter that matches it.

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
    option: str,
    statics: Container[int] = (),
    depth: int = 0,
) -> list[Ride]:
    """The ride of each dynamic leaf of a tree, from a prefix.

    Args:
        prefix: a tree prefix whose leaves the user wrote (axes, specs), or `RidesByKind`.
        tree: the tree that it is a prefix of.
        leaves: the dynamic leaves of `tree`, in order.
        read: turns a node of the prefix into a ride, or into None if the node is a container.
        option: the option's name, for errors (`in_axes`).
        statics: the positions of the leaves of `tree` that are not dynamic.
        depth: how many levels of `tree` the paths that filters see leave out; a call's arguments lie two levels deep.

    Raises:
        AxisError: if the prefix does not fit the tree, or a spec by kind does not fit its leaves.
    """
    ride = read(prefix)
    if ride is not None:
        return [ride] * len(leaves)
    if isinstance(prefix, RidesByKind):
        return _by_kind(prefix, leaves, read, option)

    def stops(node: object) -> bool:
        return isinstance(node, RidesByKind | _RidesAt) or read(node) is not None

    def placed(keys: KeyPath, node: object) -> object:
        return _RidesAt(node, max(0, len(keys) - depth)) if isinstance(node, RidesByKind) else node

    all_rides = _spread(prefix, tree, stops, placed, ())
    if all_rides is None:
        try:
            prefix_placed = jax.tree_util.tree_map_with_path(placed, prefix, is_leaf=stops)
            all_rides = _broadcast(prefix_placed, tree, stops, lambda _: False)
        except ValueError as error:
            # The prefix of a call is that of (functions, args, kwargs); the user wrote the second of these.
            raise _does_not_fit(option, prefix[1] if depth else prefix, error) from None
    # A prefix gives a ride to static leaves too, which do not ride.
    chosen = [node for i, node in enumerate(all_rides) if i not in statics]
    # Grouped by the node of the prefix, because a filter has to match at least one leaf under its node, not every leaf.
    members: dict[int, list[int]] = {}
    for i, node in enumerate(chosen):
        members.setdefault(id(node), []).append(i)
    result: list[Any] = [None] * len(chosen)
    for places in members.values():
        node = chosen[places[0]]
        if isinstance(node, _RidesAt):
            # A filter sees the paths that begin at its own argument, as in every other place that takes filters.
            below = [replace(leaves[i], root=leaves[i].root + node.below) for i in places]
            rides = _by_kind(node.spec, below, read, option)
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
    """The node of the prefix for each leaf of a tree; None if a node of the prefix lies in anything but plain
    containers.

    Most prefixes are a tuple with one entry for each argument, for which this is faster than JAX's flattening, which
    calls `is_leaf` for every node.
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
class _RidesAt:
    """Rides by kind at one place of a prefix, and how many levels below the root of the leaves' paths that place is."""

    spec: RidesByKind
    below: int


def _does_not_fit(option: str, prefix: PyTree, error: ValueError) -> AxisError:
    """The error for a prefix that does not fit; the likely reason is a dict by kind without `weft.axes` around it."""
    refuse_by_kind(prefix, option)
    fix = "give one axis (or spec, or sharding) for a whole argument, or a tree of the argument's own structure"
    return AxisError(f"{option} does not fit: {error}", at=f"{option}={prefix!r}", fix=fix)


def refuse_by_kind(prefix: PyTree, option: str, marker: str = "weft.axes", least: int = 1) -> None:
    """Refuses a dict from filters to rides that is not wrapped in `weft.axes`.

    This walks the prefix instead of flattening it, because JAX would have to sort the keys of the dict, and classes
    have no order.

    Args:
        prefix: the prefix of a call or an output.
        option: the option's name.
        marker: the function that wraps such a dict.
        least: the least number of keys. An argument may be a dict with one class as its key, but JAX cannot sort two.

    Raises:
        AxisError: saying what to write.
    """
    if isinstance(prefix, dict):
        by_kind = cast("dict[Any, Any]", prefix)
        if len(by_kind) >= least and any(key is ... or isinstance(key, _FILTERS) for key in by_kind):
            raise AxisError(
                f"{option} has a dict by kind where a tree is expected: a plain dict is the prefix of an argument that "
                "is a dict",
                at=f"{option}: {_by_filter(by_kind.items())}",
                fix=f"say that it is about kinds: {marker}({_by_filter(by_kind.items())})",
            )
        prefix = tuple(by_kind.values())
    for part in cast("Sequence[Any]", prefix) if isinstance(prefix, tuple | list) else ():
        if isinstance(part, tuple | list | dict):
            refuse_by_kind(part, option, marker, least)


_FILTERS = (type, InstanceOf, Inside, PathContains, WithTag, AnyOf)


def resolve_nodes(prefix: PyTree, tree: PyTree, is_node: Callable[[object], bool], read: Read) -> list[Ride]:
    """The ride of each node of a tree that `is_node` accepts, and of each leaf that lies in none."""
    nodes = _broadcast(prefix, tree, lambda node: read(node) is not None, is_node)
    return [read_with(read, node) for node in nodes]


def _broadcast(
    prefix: PyTree, tree: PyTree, stops: Callable[[object], bool], is_node: Callable[[object], bool]
) -> list[object]:
    configured = any(is_stored(leaf) for leaf in trees.flatten(prefix, lambda node: is_stored(node) or stops(node))[0])
    if configured:
        # A record in the prefix, `model.replace(weight=0)`: the axis 0 is no array, so that the record stores it as
        # configuration, in its treedef, where a prefix could not be read.
        prefix, tree = spelled_out(prefix), spelled_out(tree, lambda _: _CONFIGURED)
    # Not `jax.tree.broadcast`: it builds a tree of rides, and a node of another library may take arrays only.
    rides, definition = trees.flatten(prefix, stops)
    parts = definition.flatten_up_to(tree)
    return [
        ride
        for ride, part in zip(rides, parts, strict=True)
        for leaf in trees.flatten(part, is_node)[0]
        if leaf is not _CONFIGURED
    ]


# Takes the place of configuration in a tree whose records are spelled out: configuration does not ride.
_CONFIGURED = object()


def _by_kind(spec: RidesByKind, leaves: Sequence[Leaf], read: Read, option: str) -> list[Ride]:
    try:
        places = sort_leaves(leaves, [filter for filter, _ in spec.rides], require_used=not spec.optional)
    except FilterError as error:
        raise AxisError(f"{option}: {error.what}", at=error.at, fix=error.fix) from None
    rides = [read_with(read, ride) for _, ride in spec.rides]
    return [rides[place] for place in places if place is not None]


def rides_in(prefix: PyTree, read: Read) -> list[Ride]:
    """All the rides in a prefix."""
    rides: list[Ride] = []
    for leaf in _prefix_leaves(prefix, read):
        if isinstance(leaf, RidesByKind):
            rides += [read_with(read, ride) for _, ride in leaf.rides]
        # A leaf that `read` makes no ride of is configuration of a record in the prefix, and is passed over.
        elif (ride := read(leaf)) is not None:
            rides.append(ride)
    return rides


def depends_on_leaves(prefix: PyTree, read: Read, on_values: bool = False) -> bool:
    """Whether a prefix gives rides by kind, which depend on more than the call's structure: a dtype can give a kind.

    With `on_values`, whether they depend on more than structure, shapes and dtypes: filters of the user's may.
    """
    by_kind = [leaf for leaf in _prefix_leaves(prefix, read) if isinstance(leaf, RidesByKind)]
    return any(reads_values(filter) for leaf in by_kind for filter, _ in leaf.rides) if on_values else bool(by_kind)


def _prefix_leaves(prefix: PyTree, read: Read) -> list[object]:
    if type(prefix) in (tuple, list):
        return [leaf for part in cast("Sequence[PyTree]", prefix) for leaf in _prefix_leaves(part, read)]

    def stops(node: object) -> bool:
        return isinstance(node, RidesByKind) or read(node) is not None

    # Spelled out, because a record in the prefix stores its axes as configuration.
    return [prefix] if stops(prefix) else jax.tree.leaves(spelled_out(prefix), is_leaf=stops)


def mapped_size(leaves: Sequence[Leaf], axes: Sequence[int | None], *, size: int | None, name: str) -> int | None:
    """The size of the axis that leaves are mapped over.

    Args:
        leaves: dynamic leaves with their values.
        axes: an axis for each, or None where it is not mapped.
        size: the size that the user gave, if any.
        name: the transform's name, for errors.

    Raises:
        AxisError: if an axis is out of range, or the sizes differ: all offenders with path, shape and size.
    """
    # Without paths, which are only formatted for an error. The value of an NNX Variable may be a tree of arrays.
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

    # Before the sizes are compared: an axis that does not exist has no size.
    wrong = places(lambda axis, shape: not -len(shape) <= axis < len(shape))
    if wrong:
        raise AxisError(
            f"{name} is given an axis that these arguments do not have",
            at=wrong,
            fix="map them over None, or give them the axis",
        )
    sizes = {shape[axis] for _, axis, shape in mapped}
    if size is not None and sizes - {size}:
        raise AxisError(
            f"{name} got arguments whose mapped axes differ from the requested size, {size}",
            at=list(dict.fromkeys(places(lambda axis, shape: shape[axis] != size, " has size "))),
            fix="map them over None, or correct the size",
        )
    if len(sizes) > 1:
        raise AxisError(
            f"{name} got arguments with inconsistent sizes on their mapped axes: {', '.join(map(str, sorted(sizes)))}",
            at=list(dict.fromkeys(places(lambda axis, shape: True, " has size "))),
            fix="make the sizes agree, or map over None the arguments that differ",
        )
    return next(iter(sizes), size)


def check_mapped(
    name: str, leaves: Sequence[Leaf], axes: Iterable[int | None], size: int | None, problem: str, fix: str
) -> None:
    """Refuses a call whose leaves do not agree on the size of the mapped axis, or in which none is mapped.

    Args:
        name, leaves, axes, size: as in `mapped_size`.
        problem, fix: of the error if no leaf is mapped and no size is given.

    Raises:
        AxisError: as in `mapped_size`, or with this problem.
    """
    if mapped_size(leaves, list(axes), size=size, name=name) is None:
        raise AxisError(f"{name} {problem}", fix=fix)


def size_of_lanes(groups: Sequence[Sequence[Any]], lanes: Sequence[Ride], size: int | None) -> int | None:
    """The size of the axis that lanes are mapped over, by their first leaf: `mapped_size` has compared all of them."""
    for group, lane in zip(groups, lanes, strict=True):
        axis = axis_of(lane)
        for leaf in [] if axis is None else jax.tree.leaves(group):
            return leaf.shape[axis]
    return size


def subtrees(prefix: PyTree, tree: PyTree, read: Read, wanted: Ride) -> list[PyTree]:
    """The parts of a tree whose ride is `wanted`, by a prefix."""
    ride = read(prefix)
    if ride is not None:
        return [tree] if ride == wanted else []
    if type(prefix) in (tuple, list) and type(tree) is type(prefix) and len(prefix) == len(tree):
        pairs = zip(prefix, tree, strict=True)
        return [subtree for node, part in pairs for subtree in subtrees(node, part, read, wanted)]
    if wanted not in rides_in(prefix, read):
        return []
    nodes, definition = trees.flatten(prefix, lambda node: read(node) is not None)
    try:
        parts = definition.flatten_up_to(tree)
    except ValueError as error:
        raise _does_not_fit("the prefix of a carry", prefix, error) from None
    return [part for node, part in zip(nodes, parts, strict=True) if read(node) == wanted]
