"""Flattens pytrees that contain NNX objects: into one hashable structure, and the leaves that JAX gets.

The leaves of the outer pytree are *items*. An object, a Variable and an array ref are each an item that is a graph; one
plan covers all graphs of the tree, so sharing between two of them is seen. In tree mode an object is flattened as an
ordinary pytree, and only Variables and array refs are graphs.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from weft.core.edge.trees import key_part
from weft.core.paths import Path
from weft.core.records.agree import Fixed
from weft.core.records.leaves import NUMBERS, is_array, iter_leaves
from weft.nnx.errors import StructureError
from weft.nnx.foreign import refuse_foreign
from weft.nnx.graphs import whereabouts
from weft.nnx.graphs.definitions import GraphDef, IndexMap, NodeDef, NodeRef, VariableDef
from weft.nnx.graphs.plan import Plan, plan_of
from weft.nnx.graphs.unflattening import Unflattener
from weft.nnx.objects.attributes import GRAPH_TYPES
from weft.nnx.objects.objects import OBJECT
from weft.nnx.variable.refs import PLAIN_ARRAYS, copy_containers, is_array_ref
from weft.nnx.variable.tracers import current_trace_state
from weft.nnx.variable.variable import VARIABLE_TYPES, Variable
from weft.nnx.versions import structure_epoch


class _Mark:
    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return self.name


NODE, ARRAY = _Mark("node"), _Mark("array")


@dataclass(frozen=True)
class Holder:
    """The box around a leaf: a Variable's type and metadata, or `type=None` for an array that is a plain attribute."""

    type: type | None
    metadata: Any = None


PLAIN = Holder(None)
# Types of nodes and leaves that are surely no graphs.
PLAIN_NODES = {tuple, list, dict, type(None), *NUMBERS, str}


@dataclass(frozen=True)
class RefLeaf:
    """A leaf of the arguments: its path, its value, and the Variable around it (None for a plain array)."""

    path: Path
    value: Any
    holder: Any = None

    @property
    def kind(self) -> type:
        return type(self.holder)


@dataclass(frozen=True)
class RefStructure:
    """A pytree with object graphs in it, without arrays: the treedef of this boundary, and part of jit's cache key.

    Attributes:
        treedef: of the outer pytree, in which each graph and each array is a leaf (an item).
        items: for each item NODE (a graph), ARRAY, or `Fixed` around a static value.
        graphdef: the joint structure of all graphs.
        holders: for each leaf of the graphs the box around it. Arrays that are items themselves follow these leaves.
        paths: for each leaf the number of its item, and its path inside that item.
        full_paths: for each leaf its path in the whole tree.
    """

    treedef: Any
    items: tuple[Any, ...]
    graphdef: GraphDef[Any]
    holders: tuple[Holder, ...]
    # Paths follow from treedef and graphdef. Compared, they would make each lookup in jit's cache grow with the
    # model.
    paths: tuple[tuple[int, Path], ...] = field(default=(), compare=False)
    full_paths: tuple[Path, ...] = field(default=(), compare=False)

    @functools.cached_property
    def by_epoch(self) -> bool:
        """Whether every change of the objects' structure is one of the epoch (see `versions`): there are no containers,
        refs, arrays as attributes, or nodes of types that users register."""
        return PLAIN not in self.holders and all(
            isinstance(node, NodeRef)
            or (isinstance(node, VariableDef) and node.array_refdef is None)
            or (isinstance(node, NodeDef) and GRAPH_TYPES.get(node.type) is OBJECT)
            for node in self.graphdef.nodes
        )

    def __hash__(self) -> int:
        # Not every field: a hash over the metadata of all Variables would be computed at each call.
        return hash((self.treedef, self.graphdef, len(self.items)))

    def build(self, leaves: Sequence[Any]) -> Any:
        """Rebuilds the tree, of new objects around `leaves`."""
        return build(self, leaves)[0]


@dataclass
class Tree:
    """The caller's tree, flattened: its structure, the plan of its graphs, and the leaves."""

    structure: RefStructure
    flat: list[Any]
    plan: Plan
    nodes: list[int]  # which items are graphs
    leaves: list[RefLeaf]
    bases: list[Path]  # where each item is


@dataclass
class Memory:
    """The objects that a trace built for the user's function, by which its mutations are read when it returns."""

    holders: list[Any]  # for each leaf of the graphs the live Variable, or None
    index_ref: IndexMap
    roots: list[Any]
    epoch: int  # when they were built; see `versions`


def is_item(graph: bool, value: Any) -> bool:
    """Whether flattening stops at `value` because it is a graph (with `graph=False`: a Variable or an array ref)."""
    if isinstance(value, Variable) or is_array_ref(value) or (graph and type(value) in GRAPH_TYPES):
        return True
    refuse_foreign(value)
    return False


def take_apart(graph: bool, tree: Any, plan: Plan | None = None) -> Tree:
    """Flattens a pytree with NNX objects in it.

    Args:
        graph: whether objects are graphs, or trees.
        tree: containers of objects, Variables, arrays and static values.
        plan: the plan of its objects, if it is known to be valid.
    """
    shape = shape_of(graph, tree)
    plan = plan or plan_of([shape.flat[i] for i in shape.nodes]) if shape.nodes else _NO_PLAN
    # By type and not by `isinstance`: a traced hijax Variable claims to be a Variable, but JAX passes it on as a value.
    holders = tuple([Holder(type(v), v._nnx_metadata) if issubclass(type(v), Variable) else PLAIN for v in plan.leaves])
    starts = [*plan.starts, len(plan.leaves)]
    leaves: list[RefLeaf] = []
    paths: list[tuple[int, Path]] = []
    # The leaves of all graphs come before the plain arrays, whatever their order in the tree. The generated quick way
    # relies on it: it reads the Variables of a plan in one comprehension, and appends the arrays.
    values = plan.read()
    for root, place in enumerate(shape.nodes):
        for i in range(starts[root], starts[root + 1]):
            leaves.append(RefLeaf((*shape.bases[place], *plan.paths[i]), values[i], plan.leaves[i]))
            paths.append((place, plan.paths[i]))
    for place, item in enumerate(shape.structure.items):
        if item is ARRAY:
            leaves.append(RefLeaf(shape.bases[place], shape.flat[place]))
            paths.append((place, ()))
    full = tuple([leaf.path for leaf in leaves])
    structure = replace(shape.structure, graphdef=plan.graphdef, holders=holders, paths=tuple(paths), full_paths=full)
    return replace(shape, structure=structure, plan=plan, leaves=leaves)


def shape_of(graph: bool, tree: Any) -> Tree:
    """Flattens the outer pytree alone: no graph in it is walked, so the plan is empty and there are no leaves yet."""
    graph_ids: set[int] = set()

    def stops(value: Any) -> bool:
        if (kind := type(value)) in PLAIN_NODES or kind in PLAIN_ARRAYS:
            return False
        is_graph = is_item(graph, value)
        if is_graph:
            graph_ids.add(id(value))
        return is_graph

    # JAX calls `stops` once for every node and leaf, so what it answered is remembered by identity and not asked again.
    try:
        with_paths, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=stops)
    except ValueError:
        deque(iter_leaves(tree), maxlen=0)  # raises an error that names the dict with unsortable keys
        raise
    flat = [value for _, value in with_paths]
    bases = [tuple(map(key_part, path)) for path, _ in with_paths]
    nodes = [i for i, value in enumerate(flat) if id(value) in graph_ids]
    items = tuple([NODE if id(value) in graph_ids else _item(value) for value in flat])
    structure = RefStructure(treedef, items, NO_GRAPHS, ())
    return Tree(structure, flat, _NO_PLAN, nodes, [], bases)


def build(structure: RefStructure, values: Sequence[Any]) -> tuple[Any, Memory]:
    """Rebuilds a tree, of new objects around `values`. Returns it with the new objects, for `Leaving` to compare."""
    count = len(structure.holders)
    leaves: list[Any] = []
    live: list[Any] = []
    for holder, value in zip(structure.holders, values[:count], strict=True):
        if not is_array(value):
            # A dict in a Variable would be the caller's own: what the function writes into it would be no change of
            # identity, and would be visible outside even if the trace fails.
            value = copy_containers(value)
        variable = None if holder.type is None else holder.type._new(value, holder.metadata)
        live.append(variable)
        leaves.append(value if variable is None else variable)
    index_ref = IndexMap()
    flat = put_together(structure.items, Unflattener(structure.graphdef, leaves, index_ref), values[count:])
    roots = [value for item, value in zip(structure.items, flat, strict=True) if item is NODE]
    return structure.treedef.unflatten(flat), Memory(live, index_ref, roots, structure_epoch.now)


def put_together(items: Sequence[Any], graphs: Unflattener, arrays: Iterable[Any]) -> list[Any]:
    """The value of each item, in order: a graph rebuilt by `graphs`, the next of `arrays`, or a static value."""
    rest = iter(arrays)
    return [graphs.node() if item is NODE else next(rest) if item is ARRAY else item.value for item in items]


NO_GRAPHS: GraphDef[Any] = GraphDef((), (), 0)
_NO_PLAN = Plan(())


def _item(value: Any) -> Any:
    return ARRAY if is_array(value) or type(value) in NUMBERS else Fixed(value)


def named(path: Path, names: Sequence[str]) -> Path:
    """`path` as an error shows it: `(0, 1, "w")`, that is `args[1].w`, becomes `("x", "w")` if the parameter is `x`."""
    which, first, *rest = path
    if which == 0 and isinstance(first, int):
        return (names[first], *rest) if first < len(names) else ("args", first, *rest)
    return (first, *rest)


def repeats_of(plan: Plan) -> Iterator[tuple[int, Path, int]]:
    """The nodes that a plan met a second time, each as (number, second path, root below which that path is)."""
    for root, (start, end) in enumerate(itertools.pairwise([*plan.repeat_starts, len(plan.repeats)])):
        for number, path in plan.repeats[start:end]:
            yield number, path, root


def check_levels(nodes: Iterable[Any]) -> None:
    """Refuses objects and Variables that were created at another trace level.

    Raises:
        TraceLevelError: naming their type.
    """
    here = current_trace_state()
    for node in nodes:
        state = node._trace_state if type(node) in VARIABLE_TYPES else getattr(node, "_pytree__trace", None)
        # Identity first: `is_valid` asks JAX for the current trace, and nearly every node is of the current one.
        if state is not None and state is not here and not state.is_valid():
            raise StructureError(
                f"Cannot extract graph node from different trace level: {type(node).__name__}",
                at=whereabouts.find(node, "given to a transform"),
                fix="pass it to the transform as an argument instead of closing over it",
            )
