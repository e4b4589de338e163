"""`to_tree` and `from_tree`: replace the objects in a pytree by pytrees that JAX takes, and put objects back.

Each object becomes a `NodeStates`: its structure (static) and its states. If an object is reached by several paths of
the tree, the first path has its description, and the others refer to it by number. `prefix` makes prefixes for the
transforms out of filters.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import jax
import jax.tree_util as jtu
from weft.core.paths import Path, format_path
from weft.nnx.config import graph_mode
from weft.nnx.crossing.contexts import MergeContext, SplitContext, merge_context, split_context
from weft.nnx.crossing.flattening import check_levels
from weft.nnx.errors import AliasError, FilterError, Missing, StructureError
from weft.nnx.graphs.definitions import GraphDef, RefMap
from weft.nnx.graphs.nodes import is_graph_node, jax_to_nnx_path
from weft.nnx.graphs.splitting import flatten, nested_or_leaf
from weft.nnx.graphs.walk import iter_graph
from weft.nnx.modules.pytree import Pytree
from weft.nnx.states.filters import Filter, to_predicate
from weft.nnx.variable.variable import Variable

A = TypeVar("A")
KeyPath = tuple[Any, ...]


class PrefixMapping(abc.ABC):
    """Base class of prefixes that have a value of their own for each Variable of an object."""

    @abc.abstractmethod
    def map_prefix(self, path: Path, variable: Any, /) -> Any:
        """Returns the prefix's value for the Variable at `path`."""


@functools.partial(jtu.register_dataclass, data_fields=["_graphdef", "states"], meta_fields=["metadata"])
@dataclasses.dataclass(frozen=True)
class NodeStates:
    """An object as a tree: its structure and its states.

    >>> from weft import nnx
    >>> node = NodeStates.from_split(*nnx.split(nnx.Dict(w=nnx.Param(1.0))))
    >>> node.graphdef.num_leaves, list(node.state)
    (1, ['w'])
    """

    _graphdef: GraphDef[Any] | None
    states: tuple[Any, ...]
    metadata: Any

    @property
    def graphdef(self) -> GraphDef[Any]:
        if self._graphdef is None:
            raise StructureError("this NodeStates has no graphdef", fix="make it with NodeStates.from_split")
        return self._graphdef

    @property
    def state(self) -> Any:
        if len(self.states) != 1:
            raise StructureError(f"expected exactly one state, got {len(self.states)}")
        return self.states[0]

    @classmethod
    def from_split(
        cls, graphdef: GraphDef[Any] | None, state: Any, /, *states: Any, metadata: Any = None
    ) -> NodeStates:
        return cls(graphdef, (state, *states), metadata)

    @classmethod
    def from_states(cls, state: Any, *states: Any) -> NodeStates:
        return cls(None, (state, *states), None)

    @classmethod
    def from_prefixes(cls, prefixes: Iterable[Any], /, *, metadata: Any = None) -> NodeStates:
        return cls(None, tuple(prefixes), metadata)

    def replace(self, **updates: Any) -> NodeStates:
        return dataclasses.replace(self, **updates)


@functools.partial(jtu.register_dataclass, data_fields=["state"], meta_fields=["graphdef"])
@dataclasses.dataclass(frozen=True)
class GraphDefState:
    """An object as a tree of one state, with its structure static.

    >>> from weft import nnx
    >>> node = GraphDefState(*nnx.split(nnx.Dict(w=nnx.Param(1.0))))
    >>> jax.tree.leaves(node)
    [1.0]
    """

    graphdef: GraphDef[Any]
    state: Any

    def replace(self, **updates: Any) -> GraphDefState:
        return dataclasses.replace(self, **updates)


def default_split_fn(ctx: SplitContext, path: KeyPath, prefix: Any, leaf: Any) -> NodeStates:
    """Splits an object into its structure and one state."""
    return NodeStates.from_split(*ctx.split(leaf))


def merge_tree_node(ctx: MergeContext, path: KeyPath, prefix: Any, leaf: Any) -> Any:
    """Rebuilds an object from its structure and states."""
    if not isinstance(leaf, NodeStates):
        raise StructureError(f"Expected NodeStates, got {type(leaf).__name__}", at=format_path(jax_to_nnx_path(path)))
    return ctx.merge(leaf.graphdef, *leaf.states)


def is_tree_node(value: Any) -> bool:
    """Whether `to_tree` put this value in the place of an object."""
    return isinstance(value, NodeStates)


def _with_prefix(
    tree: Any, prefix: Any, is_leaf: Callable[[Any], bool]
) -> tuple[Iterator[tuple[KeyPath, Any, Any]], Any]:
    """Returns (path, prefix, leaf) for each leaf of a tree, and the treedef."""
    leaves, treedef = jtu.tree_flatten_with_path(tree, is_leaf=is_leaf)
    # flax treats None and a missing prefix alike here: each leaf gets it as its prefix.
    if prefix is Missing or prefix is None:
        return (((), prefix, leaf) for _, leaf in leaves), treedef
    prefixes: list[Any] = []

    def add(value: Any, subtree: Any) -> None:
        prefixes.extend([value] * jax.tree.structure(subtree, is_leaf=is_leaf).num_leaves)

    # `jax.tree.map` calls `add` once per leaf of the prefix, with the subtree that this leaf is the prefix of.
    jax.tree.map(add, prefix, tree, is_leaf=lambda value: value is None or is_leaf(value))
    return ((path, chosen, leaf) for (path, leaf), chosen in zip(leaves, prefixes, strict=True)), treedef


def to_tree(
    tree: Any,
    /,
    *,
    prefix: Any = Missing,
    split_fn: Callable[[SplitContext, KeyPath, Any, Any], Any] = default_split_fn,
    map_non_graph_nodes: bool = False,
    ctxtag: Hashable | None = None,
    check_aliasing: bool = True,
) -> Any:
    """Replaces each object in a pytree by a pytree that JAX takes.

    Args:
        tree: any pytree with objects in it.
        prefix: a prefix of the tree; `split_fn` gets its value for each object.
        split_fn: a function of (context, path, prefix, object) that makes the pytree.
        map_non_graph_nodes: whether other leaves go through `split_fn` too.
        ctxtag: the tag of an update context.
        check_aliasing: whether to refuse a Variable that is reached under two prefixes.

    Raises:
        ValueError: if `check_aliasing` and a Variable has two prefixes; the error names all paths to it.

    >>> from weft import nnx
    >>> tree = to_tree({"model": nnx.Dict(w=nnx.Param(1.0)), "n": 2})
    >>> type(tree["model"]).__name__, tree["n"]
    ('NodeStates', 2)
    """
    places: dict[int, list[tuple[Path, Any]]] = {}
    entries, treedef = _with_prefix(tree, prefix, is_graph_node)
    with split_context(ctxtag) as context:
        out: list[Any] = []
        for path, value_of_prefix, leaf in entries:
            # The path is empty without a prefix, or if the tree is one object: then no second prefix can contradict.
            is_object = is_graph_node(leaf)
            if is_object and path and check_aliasing:
                check_consistent_aliasing(leaf, value_of_prefix, node_prefixes=places, base_path=jax_to_nnx_path(path))
            out.append(split_fn(context, path, value_of_prefix, leaf) if is_object or map_non_graph_nodes else leaf)
    return treedef.unflatten(out)


def from_tree(
    tree: Any,
    /,
    *,
    prefix: Any = Missing,
    merge_fn: Callable[[MergeContext, KeyPath, Any, Any], Any] = merge_tree_node,
    is_node_leaf: Callable[[Any], bool] = is_tree_node,
    is_leaf: Callable[[Any], bool] = is_tree_node,
    map_non_graph_nodes: bool = False,
    is_inner: bool | None = None,
    ctxtag: Hashable | None = None,
) -> Any:
    """The inverse of `to_tree`.

    Args:
        tree: what `to_tree` returned.
        prefix: a prefix of it; `merge_fn` gets its value for each object.
        merge_fn: a function of (context, path, prefix, pytree) that rebuilds an object.
        is_node_leaf: whether a leaf is a pytree in the place of an object.
        is_leaf: as in `jax.tree.map`, where to stop.
        map_non_graph_nodes: whether other leaves go through `merge_fn` too.
        is_inner: under an update context, whether this is the merge inside the pure function.
        ctxtag: the tag of that context.

    Raises:
        ValueError: under an update context, if `is_inner` is not given.

    >>> from weft import nnx
    >>> from_tree(to_tree({"model": nnx.Dict(w=nnx.Param(1.0)), "n": 2}))["model"].w.get_value()
    1.0
    """
    entries, treedef = _with_prefix(tree, prefix, is_leaf)
    with merge_context(ctxtag, is_inner) as context:
        out = [
            merge_fn(context, path, value_of_prefix, leaf)
            if map_non_graph_nodes or is_node_leaf(leaf) or isinstance(leaf, Variable)
            else leaf
            for path, value_of_prefix, leaf in entries
        ]
    return treedef.unflatten(out)


def check_consistent_aliasing(
    node: Any,
    prefix: Any,
    /,
    *,
    node_prefixes: dict[int, list[tuple[Path, Any]]] | None = None,
    base_path: Path = (),
) -> None:
    """Refuses Variables that are reached under different prefixes.

    Args:
        node: an object.
        prefix: its prefix.
        node_prefixes: (path, prefix) of Variables by identity, from earlier calls; this call adds its own to it.
        base_path: the object's path.

    Raises:
        ValueError: naming all paths and prefixes; also if a node was created at another trace level.
    """
    places = {} if node_prefixes is None else node_prefixes
    kinds: dict[int, str] = {}
    for path, value in iter_graph(node, graph=True):
        if isinstance(value, (Pytree, Variable)):
            check_levels([value])
        if isinstance(value, Variable):
            # A filter gets the path inside the object: users write filters for a model, wherever they pass it.
            own = prefix.map_prefix(path, value) if isinstance(prefix, PrefixMapping) else prefix
            kinds[id(value)] = type(value).__name__
            places.setdefault(id(value), []).append(((*base_path, *path), own))
    clashes = [
        f"{format_path(path)}: {kinds.get(key, 'Variable')} under {own}"
        for key, paths_and_prefixes in places.items()
        if any(own != paths_and_prefixes[0][1] for _, own in paths_and_prefixes)
        for path, own in paths_and_prefixes
    ]
    if clashes:
        raise AliasError(
            "Inconsistent aliasing detected. The following nodes have different prefixes:",
            at=clashes,
            fix="give one prefix to all places of a Variable, or clone it",
        )


# ---------------------------------------------------------------------- prefixes


@dataclasses.dataclass(frozen=True, slots=True)
class Opaque(Generic[A]):
    """A static value that never causes a retrace: all `Opaque` compare equal."""

    value: A

    def __eq__(self, other: object) -> bool:
        # The function in a prefix is a new closure in each call, and would make each prefix a new treedef.
        return type(self) is type(other)

    def __hash__(self) -> int:
        return 0


@jtu.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, slots=True)
class TreeState:
    """An object in a prefix for graph mode: its structure, and prefixes in place of its values."""

    graphdef: GraphDef[Any] | None
    state: Any
    prefix_fn: Opaque[Any] = Opaque(None)

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        return ((jtu.GetAttrKey("__state__"), self.state),), (self.graphdef, self.prefix_fn)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> TreeState:
        return cls(aux[0], children[0], aux[1])

    def replace(self, **kwargs: Any) -> TreeState:
        return dataclasses.replace(self, **kwargs)


def prefix(node: Any, filter_map: Mapping[Filter, Any] | Callable[..., Any], /, *, graph: bool | None = None) -> Any:
    """Makes a prefix for a transform: a tree like `node`, with a value (an axis, a spec) for each Variable and leaf.

    Args:
        node: the graph.
        filter_map: a value for each filter, where the first filter that matches counts; or a function of (path, leaf).
        graph: whether the transform runs in graph mode. Objects then become `TreeState`s that share one numbering, so
            all objects of a call must go through one call of `prefix` together.

    Raises:
        ValueError: if no filter matches a leaf, naming its path.

    >>> from weft.nnx.variable.kinds import BatchStat, Param
    >>> prefix({"a": Param(1), "b": BatchStat(2)}, {Param: None, ...: 0}, graph=False)
    {'a': None, 'b': 0}
    """
    value_at = _by_filter(filter_map) if isinstance(filter_map, Mapping) else filter_map
    if graph_mode(graph):
        numbers = RefMap()

        def as_tree(base: Any, value: Any) -> Any:
            if not is_graph_node(value):
                return value
            # One numbering for all objects: a transform, too, has one leaf for a Variable that two arguments share.
            graphdef, flat = flatten(value, ref_index=numbers, graph=True)
            start = jax_to_nnx_path(base)
            return TreeState(graphdef, nested_or_leaf(flat), Opaque(lambda path, leaf: value_at((*start, *path), leaf)))

        node = jax.tree.map_with_path(as_tree, node, is_leaf=is_graph_node)
    return jax.tree.map_with_path(
        lambda path, leaf: value_at(tuple(part for part in jax_to_nnx_path(path) if part != "__state__"), leaf),
        node,
        is_leaf=lambda leaf: isinstance(leaf, Variable),
    )


def _by_filter(filter_map: Mapping[Any, Any]) -> Callable[[Path, Any], Any]:
    tests = [(to_predicate(filter), value) for filter, value in filter_map.items()]

    def value_at(path: Path, leaf: Any) -> Any:
        for test, value in tests:
            if test(path, leaf):
                return value
        raise FilterError(
            f"No filter matched a {type(leaf).__name__}",
            at=format_path(path),
            fix="add a filter, or `...` for the rest",
        )

    return value_at


def clear_non_graph_nodes(tree: Any) -> Any:
    """Replaces everything in a tree but objects and Variables by None.

    >>> from weft.nnx.variable.kinds import Param
    >>> param = Param(1)
    >>> clear_non_graph_nodes([param, 2])[1] is None
    True
    """
    return jax.tree.map(lambda value: value if is_graph_node(value) else None, tree, is_leaf=is_graph_node)
