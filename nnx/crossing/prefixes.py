"""Prefixes (`in_axes` and its kin) for trees that contain graphs: which ride each leaf gets.

Users write a prefix for the tree that they see: containers with objects in them. An object is one leaf of that tree, an
*item*, so `specs` broadcasts the prefix over the items, as JAX broadcasts one over arrays. The entry of an item is one
ride for all of it, or tells its Variables apart: a ride for each filter (`ByFilter`), or a State or another object with
a ride at each path. A *finder* is such an entry as a function from a path to a ride. It also answers for paths that did
not exist when the call came in: the ride of a Variable that the function adds comes from it.

A Variable that is reached by several paths is one leaf on one ride. The first path decides the ride, and every other
path must agree on its *place* (`Ride.place`): two different axes, or an axis and None, are an error that names both
paths. Two exceptions: a prefix from `nnx.prefix` names each Variable once, so it is not asked about further paths; and
filters are asked about the first path in each item alone, as in flax, because the filters of a model that uses a part
twice would otherwise have to match both of its paths.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from typing import Any

import jax
from weft.core.errors import DifferentiationError
from weft.core.interpreter.boundary import Arrival
from weft.core.interpreter.prefixes import RidesByKind
from weft.core.interpreter.rides import Read, Ride, read_with
from weft.core.paths import Path, format_path
from weft.core.records.agree import Fixed
from weft.nnx.crossing.extract import TreeState
from weft.nnx.crossing.flattening import ARRAY, Tree, is_item, repeats_of
from weft.nnx.crossing.rides import ByFilter
from weft.nnx.errors import AliasError, AxisError, PrefixError
from weft.nnx.graphs.plan import variables_below
from weft.nnx.states.states import State
from weft.nnx.variable.variable import Variable


class OfGraph(ByFilter):
    """The prefix that `nnx.prefix` has made for one graph, with an entry for the first path of each Variable.

    For a further path, `elsewhere` (the user's own function) says the ride that is compared with that of the first.
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
    """Replaces each `TreeState` that `nnx.prefix` has made for graph mode by a prefix leaf (`OfGraph`)."""

    def read(node: Any) -> Any:
        if not isinstance(node, TreeState):
            return node
        return OfGraph(node.state, node.prefix_fn.value) if isinstance(node.state, State) else node.state

    return jax.tree.map(
        read, prefix, is_leaf=lambda node: isinstance(node, TreeState | State | Variable) or node is None
    )


def specs(graph: bool, prefix: Any, tree: Tree, read: Read, option: str) -> list[Any]:
    """Broadcasts a prefix over the items of a tree: returns the entry of each item."""

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
        # A State in a prefix may be the prefix of a State (a container of items), or have a ride for each path of one
        # object. The first reading is tried first; if it does not fit, States are leaves.
        with suppress(ValueError):
            return treedef.flatten_up_to(spread(leaves))
        everywhere = spread(leaves | State)
    except ValueError as error:
        raise PrefixError(
            f"{option} does not fit: {error}",
            at=f"{option}={prefix!r}",
            fix="give one ride for a whole argument, or a tree of the argument's own structure",
        ) from None
    return treedef.flatten_up_to(everywhere)


def _spread_directly(prefix: Any, treedef: Any, read: Read) -> list[Any] | None:
    """Broadcasts a prefix whose containers are those of the tree; None where only JAX can tell whether it fits.

    Most prefixes are a tuple with an entry for each argument; `jax.tree.broadcast` would call `is_leaf` for every node.
    """
    if isinstance(prefix, RidesByKind) or read(prefix) is not None:
        return [prefix] * treedef.num_leaves
    # Other containers, such as records, may have prefixes of another form, which JAX's error would explain.
    kind, keys = treedef.node_data() or (None, ())
    if kind not in (tuple, list, dict) or type(prefix) is not kind or len(prefix) != len(treedef.children()):
        return None
    if kind is dict and set(keys) != set(prefix):
        return None
    parts = [prefix[key] for key in keys] if kind is dict else list(prefix)
    entries: list[Any] = []
    for part, child in zip(parts, treedef.children(), strict=True):
        below = _spread_directly(part, child, read)
        if below is None:
            return None
        entries += below
    return entries


def rides_of(graph: bool, prefix: Any, tree: Tree, read: Read, option: str) -> list[Ride]:
    """Returns the ride of each leaf of a tree.

    Raises:
        PrefixError: if the prefix does not fit.
        DifferentiationError: for a static value outside of objects in a differentiated argument.
        AliasError: if one Variable is reached under different rides, naming every path.
    """
    by_item = specs(graph, prefix, tree, read, option)
    _refuse_statics(by_item, tree)
    plan = tree.plan
    rides = []
    finders = [finder(by_item[place], read, option, tree.flat[place]) for place in tree.nodes]
    starts = [*plan.starts, len(plan.leaves)]
    for root in range(len(tree.nodes)):
        for i in range(starts[root], starts[root + 1]):
            rides.append(finders[root](plan.paths[i], plan.leaves[i]))
    if plan.repeats:
        # Roots whose prefix is from `nnx.prefix`, and (below) the leaves of each root whose prefix is a filter.
        named_once = {root for root, place in enumerate(tree.nodes) if isinstance(by_item[place], OfGraph)}
        filtered = {
            root: range(starts[root], starts[root + 1])
            for root, place in enumerate(tree.nodes)
            if isinstance(by_item[place], RidesByKind) and root not in named_once
        }
        _check_aliases(tree, finders, rides, option, named_once, filtered)
    plain = zip(by_item, tree.structure.items, tree.flat, strict=True)
    return rides + [_plain_ride(spec, value, read, option) for spec, item, value in plain if item is ARRAY]


def _refuse_statics(by_item: Sequence[Any], tree: Tree) -> None:
    rows = zip(by_item, tree.structure.items, tree.bases, tree.flat, strict=True)
    # Only the prefix of a differentiated argument has a ride for an array by itself. The gradient of a string would be
    # None, and look as if the function did not depend on it.
    wrong = [
        f"{format_path(base)}: {value!r:.80}"
        for spec, item, base, value in rows
        if isinstance(item, Fixed) and isinstance(spec, RidesByKind) and spec.of_array(value) is not None
    ]
    if wrong:
        raise DifferentiationError(
            "a static value cannot be differentiated", at=wrong, fix="leave its argument out of argnums"
        )


def finder(spec: Any, read: Read, option: str, item: Any = None) -> Callable[[Path, Any], Ride]:
    """Makes a function from (path inside an item, Variable or array there) to a ride, from the entry of that item.

    Raises (when called):
        AxisError: if no filter of the entry matches.
    """
    find = _finder(spec, read, item)

    def ride_at(path: Path, holder: Any) -> Ride:
        try:
            return find(path, holder)
        except LookupError:
            raise AxisError(
                f"{option}: no filter matches this {type(holder).__name__}",
                at=format_path(path),
                fix="add a filter for it, or end with `...` for the rest",
            ) from None

    return ride_at


def _finder(spec: Any, read: Read, item: Any) -> Callable[[Path, Any], Ride]:
    if isinstance(item, Variable) and isinstance(spec, RidesByKind):
        # A Variable that is an argument by itself has no path for a filter, so `DiffState(0, ...)` and the like choose
        # it whole.
        chosen = spec.of_array(item.get_raw_value())
        if chosen is not None:
            ride = read_with(read, chosen)
            return lambda path, value: ride
    if isinstance(spec, ByFilter):
        return spec.finder(read)
    if isinstance(spec, RidesByKind):
        return ByFilter(spec.rides).finder(read)
    if isinstance(spec, State):
        # By path and not as a pytree, in which the Nones of unmapped Variables would be no leaves.
        return ByFilter(spec).finder(read)
    ride = read_with(read, spec)
    return lambda path, value: ride


def _check_aliases(
    tree: Tree,
    finders: Sequence[Any],
    rides: Sequence[Ride],
    option: str,
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
            # The ride is decided by the first path; this path is asked only whether it agrees.
            i = first[place_of[id(variable)]]
            if root in filtered:
                # The second exception of the module's docstring: within an item, filters are asked about the first
                # path only.
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
            f"Duplicate {' and '.join(kinds)}, which is reached under different {option}",
            at=[place for places in wrong.values() for place in places],
            fix="give every path to one Variable the same, or pass the Variable only once",
        )


def without_functions(prefix: Arrival) -> Any:
    """Drops the entry for the user's functions from a call's prefix, which leaves those for args and kwargs."""
    return None if prefix is None else prefix[1:]


def _plain_ride(spec: Any, value: Any, read: Read, option: str) -> Ride:
    if not isinstance(spec, RidesByKind):
        return read_with(read, spec)
    ride = spec.of_array(value)
    if ride is None:
        raise AxisError(
            f"Cannot use StateAxes on non-graph nodes: {option} has {spec!r} for an array",
            fix="give the array one axis or spec instead of filters",
        )
    return read_with(read, ride)
