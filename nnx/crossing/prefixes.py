"""Prefixes of trees with graphs in them: which ride each leaf gets, so that one Variable has one ride.

A prefix is written for the tree that the caller sees: containers with objects in them. An object is one leaf of that
tree, an *item*, so a prefix is spread over the items first (`specs`), as JAX spreads one over arrays. What then stands
at an item may still say different things of what is inside: a filter's ride for each Variable (`ByFilter`), a State or
another object with a ride at each path, or one ride for all. A *finder* is any of these as a function from a path to a
ride; it also answers for paths that did not exist when the call came in, which is how new Variables find theirs.

A Variable that is reached by several paths is one leaf, and can ride in one way only. The first path decides, and every
other must agree on its *place* (`Ride.place`): two axes, or an axis and none, are an error that names both paths. A
prefix that was made of the graph itself (`nnx.prefix`) names each Variable once, so it is not asked about the others.
Filters are asked for the first path in each item alone, as in flax: those of a model that uses a part twice would
otherwise have to name both of its paths.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from typing import Any

import jax
from weft.core.interpreter.boundary import Arrival
from weft.core.interpreter.prefixes import RidesByKind
from weft.core.interpreter.rides import Read, Ride, read_with
from weft.core.paths import Path, format_path
from weft.nnx.crossing.apart import ARRAY, Tree, is_item, repeats_of
from weft.nnx.crossing.extract import TreeState
from weft.nnx.crossing.rides import ByFilter
from weft.nnx.errors import AliasError, AxisError, PrefixError
from weft.nnx.graphs.plan import variables_below
from weft.nnx.states.states import State
from weft.nnx.variable.variable import Variable


class OfGraph(ByFilter):
    """The prefix of one graph, which `nnx.prefix` has made: each Variable stands in it where it is first met.

    What its function says of the other paths to one is what their prefixes are compared by.
    """

    _elsewhere: Callable[[Path, Any], Any] | None

    def __init__(self, rides: Any, elsewhere: Callable[[Path, Any], Any] | None):
        super().__init__(rides)
        object.__setattr__(self, "_elsewhere", elsewhere)

    def finder(self, read: Callable[[Any], Any] | None = None) -> Callable[[Path, Any], Any]:
        named, elsewhere = super().finder(read), self._elsewhere

        def find(path: Path, value: Any) -> Any:
            try:
                return named(path, value)
            except LookupError:
                if elsewhere is None:
                    raise
                ride = elsewhere(path, value)
                return ride if read is None else read_with(read, ride)

        return find


def read_prefix(prefix: Any) -> Any:
    """A prefix with what `nnx.prefix` made for graph mode as leaves."""

    def read(node: Any) -> Any:
        if not isinstance(node, TreeState):
            return node
        return OfGraph(node.state, node.prefix_fn.value) if isinstance(node.state, State) else node.state

    return jax.tree.map(
        read, prefix, is_leaf=lambda node: isinstance(node, TreeState | State | Variable) or node is None
    )


def specs(graph: bool, prefix: Any, tree: Tree, read: Read, what: str) -> list[Any]:
    """The prefix of each item."""

    def spread(known: Any) -> Any:
        def stops(node: Any) -> bool:
            return read(node) is not None or isinstance(node, known) or is_item(graph, node)

        return jax.tree.broadcast(prefix, treedef.unflatten(range(treedef.num_leaves)), is_leaf=stops)

    treedef = tree.structure.treedef
    direct = _spread_directly(prefix, treedef, read)
    if direct is not None:
        return direct
    leaves = ByFilter | RidesByKind | Variable
    try:
        # A State in a prefix is for a State, or has a ride for each path of an object.
        with suppress(ValueError):
            return treedef.flatten_up_to(spread(leaves))
        everywhere = spread(leaves | State)
    except ValueError as error:
        raise PrefixError(
            f"{what} does not fit: {error}",
            at=f"{what}={prefix!r}",
            fix="give one ride for a whole argument, or a tree of the argument's own structure",
        ) from None
    return treedef.flatten_up_to(everywhere)


def _spread_directly(prefix: Any, treedef: Any, read: Read) -> list[Any] | None:
    """The prefix of each item, where its containers are those of the tree; None where JAX has to say how it fits.

    Most prefixes are a tuple with one entry for each argument. JAX would ask of every node whether to stop there.
    """
    if isinstance(prefix, RidesByKind) or read(prefix) is not None:
        return [prefix] * treedef.num_leaves
    kind, keys = treedef.node_data() or (None, ())
    if kind not in (tuple, list, dict) or type(prefix) is not kind or len(prefix) != len(treedef.children()):
        return None
    if kind is dict and set(keys) != set(prefix):
        return None
    parts = [prefix[key] for key in keys] if kind is dict else list(prefix)
    found: list[Any] = []
    for part, child in zip(parts, treedef.children(), strict=True):
        below = _spread_directly(part, child, read)
        if below is None:
            return None
        found += below
    return found


def rides_of(graph: bool, prefix: Any, tree: Tree, read: Read, what: str) -> list[Ride]:
    """The ride of each leaf.

    Raises:
        PrefixError: if the prefix does not fit.
        AliasError: if one Variable is reached under different rides, naming every path.
    """
    by_item = specs(graph, prefix, tree, read, what)
    plan, rides = tree.plan, []
    finders = [finder(by_item[place], read, what, tree.flat[place]) for place in tree.nodes]
    starts = [*plan.starts, len(plan.leaves)]
    for root in range(len(tree.nodes)):
        for i in range(starts[root], starts[root + 1]):
            rides.append(finders[root](plan.paths[i], plan.leaves[i]))
    if plan.repeats:
        # A prefix made of the graph itself names each Variable once, where it is first met.
        named_once = {root for root, place in enumerate(tree.nodes) if isinstance(by_item[place], OfGraph)}
        filtered = {
            root: range(starts[root], starts[root + 1])
            for root, place in enumerate(tree.nodes)
            if isinstance(by_item[place], RidesByKind) and root not in named_once
        }
        _check_aliases(tree, finders, rides, what, named_once, filtered)
    plain = zip(by_item, tree.structure.items, tree.flat, strict=True)
    return rides + [_plain_ride(spec, value, read, what) for spec, item, value in plain if item is ARRAY]


def finder(spec: Any, read: Read, what: str, item: Any = None) -> Callable[[Path, Any], Ride]:
    """From a path inside of an item, and what is there, to its ride, by the prefix of the item.

    Raises (when called):
        AxisError: if the prefix says nothing of what is there.
    """
    find = _finder(spec, read, item)

    def ride_at(path: Path, holder: Any) -> Ride:
        try:
            return find(path, holder)
        except LookupError:
            raise AxisError(
                f"{what}: no filter matches this {type(holder).__name__}",
                at=format_path(path),
                fix="add a filter for it, or end with `...` for the rest",
            ) from None

    return ride_at


def _finder(spec: Any, read: Read, item: Any) -> Callable[[Path, Any], Ride]:
    if isinstance(item, Variable) and isinstance(spec, RidesByKind):
        # A Variable that is an argument by itself, or in a State, was chosen by the caller already.
        chosen = spec.of_array(item.get_raw_value())
        if chosen is not None:
            ride = read_with(read, chosen)
            return lambda path, value: ride
    if isinstance(spec, ByFilter):
        return spec.finder(read)
    if isinstance(spec, RidesByKind):
        return ByFilter(spec.rides).finder(read)
    if isinstance(spec, State):
        # By its own paths: as a tree it would hide the leaves under which nothing rides.
        return ByFilter(spec).finder(read)
    ride = read_with(read, spec)
    return lambda path, value: ride


def _check_aliases(
    tree: Tree,
    finders: Sequence[Any],
    rides: Sequence[Ride],
    what: str,
    named_once: Container[int],
    filtered: Mapping[int, range],
) -> None:
    plan = tree.plan
    first = {number: i for i, number in enumerate(plan.numbers) if number is not None}
    place_of = {id(leaf): number for leaf, number in zip(plan.leaves, plan.numbers, strict=True)}
    wrong: dict[int, list[str]] = {}
    asked: set[tuple[int, int]] = set()
    for number, path, root in repeats_of(plan):
        for below, variable in variables_below(plan.node(number)):
            # Its ride is that of its first path; this path is only asked whether it agrees.
            i = first[place_of[id(variable)]]
            if root in filtered:
                if i in filtered[root] or (root, i) in asked:
                    continue
                asked.add((root, i))
            try:
                ride = finders[root]((*path, *below), variable)
            except AxisError:
                if root in named_once:
                    continue
                raise
            if ride.place != rides[i].place:
                places = wrong.setdefault(i, [f"{format_path(tree.leaves[i].path)}: {rides[i]}"])
                base = tree.bases[tree.nodes[root]]
                places.append(f"{format_path((*base, *path, *below))}: {ride}")
    if wrong:
        kinds = sorted({type(plan.leaves[i]).__name__ for i in wrong})
        raise AliasError(
            "Inconsistent aliasing detected. The following nodes have different prefixes: "
            f"Duplicate {' and '.join(kinds)}, which is reached under different {what}",
            at=[place for places in wrong.values() for place in places],
            fix="give every path to one Variable the same, or pass the Variable only once",
        )


def without_functions(prefix: Arrival) -> Any:
    """The part of a call's prefix that is about the arguments."""
    return None if prefix is None else prefix[1:]


def _plain_ride(spec: Any, value: Any, read: Read, what: str) -> Ride:
    if isinstance(spec, RidesByKind):
        ride = spec.of_array(value)
        if ride is not None:
            return read_with(read, ride)
        raise AxisError(
            f"Cannot use StateAxes on what is no graph: {what}: {spec!r} was given for an array",
            fix="give the array one ride",
        )
    return read_with(read, spec)
