"""Trees with graphs in them, taken apart: one structure without identities and arrays, and the leaves.

Objects, Variables and array refs are the *items* that are graphs; they are planned together, so that what they share is
known. In tree mode objects are looked through as the pytrees that they are, and only Variables and refs are items.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from weft.core.paths import Path, key_part
from weft.core.records.agree import Fixed
from weft.core.records.leaves import NUMBERS, is_array, iter_leaves
from weft.nnx.errors import StructureError
from weft.nnx.foreign import refuse_foreign
from weft.nnx.graphs import whereabouts
from weft.nnx.graphs.definitions import GraphDef, IndexMap
from weft.nnx.graphs.plan import Plan, plan_of
from weft.nnx.graphs.unflattening import Unflattener
from weft.nnx.objects.attributes import GRAPH_TYPES
from weft.nnx.variable.refs import copy_containers, is_array_ref
from weft.nnx.variable.tracers import current_trace_state
from weft.nnx.variable.variable import VARIABLE_TYPES, Variable


class _Mark:
    def __init__(self, name: str):
        self.name = name

    def __repr__(self) -> str:
        return self.name


NODE, ARRAY = _Mark("node"), _Mark("array")


@dataclass(frozen=True)
class Holder:
    """What a leaf sits in: a Variable of this type and metadata, or (None) an array that is an attribute."""

    type: type | None
    metadata: Any = None


PLAIN = Holder(None)


@dataclass(frozen=True)
class RefLeaf:
    """A leaf on its way in: where it is, its value, and what holds it."""

    path: Path
    value: Any
    holder: Any = None

    @property
    def kind(self) -> type:
        return type(self.holder)


@dataclass(frozen=True)
class RefStructure:
    """A tree with graphs in it, without its arrays.

    Attributes:
        treedef: of the tree, with each graph and each array as a leaf.
        items: for each of those leaves NODE, ARRAY, or `Fixed` for a static value.
        graphdef: the joint structure of the graphs.
        holders: for each leaf of the graphs, what it sits in; leaves that are ARRAY items follow them.
        paths: for each leaf its item, and its path inside of that.
        full_paths: for each leaf its path in the tree.
    """

    treedef: Any
    items: tuple[Any, ...]
    graphdef: GraphDef[Any]
    holders: tuple[Holder, ...]
    paths: tuple[tuple[int, Path], ...] = field(default=(), compare=False)
    full_paths: tuple[Path, ...] = field(default=(), compare=False)

    def __hash__(self) -> int:
        return hash((self.treedef, self.graphdef, len(self.items)))

    def build(self, leaves: Sequence[Any]) -> Any:
        """The tree again, of fresh objects around these leaves."""
        return build(self, leaves)[0]


@dataclass
class Tree:
    """A live tree taken apart: its structure, its plan, and the leaves."""

    structure: RefStructure
    flat: list[Any]
    plan: Plan
    nodes: list[int]  # which items are graphs
    leaves: list[RefLeaf]
    bases: list[Path]  # where each item is


@dataclass
class Memory:
    """What is remembered of a live call until its function has returned."""

    holders: list[Any]  # for each leaf of the graphs the live Variable, or None
    index_ref: IndexMap
    roots: list[Any]


def is_item(graph: bool, value: Any) -> bool:
    """Whether a value is a graph of its own, where objects are graphs or not."""
    if isinstance(value, Variable) or is_array_ref(value) or (graph and type(value) in GRAPH_TYPES):
        return True
    refuse_foreign(value)
    return False


def take_apart(graph: bool, tree: Any) -> Tree:
    """Takes a tree with graphs in it apart.

    Args:
        graph: whether objects are graphs, or trees.
        tree: containers of objects, Variables, arrays and static values.
    """
    shape = shape_of(graph, tree)
    plan = plan_of([shape.flat[i] for i in shape.nodes])
    holders = tuple([_holder(leaf) for leaf in plan.leaves])
    starts = [*plan.starts, len(plan.leaves)]
    leaves: list[RefLeaf] = []
    paths: list[tuple[int, Path]] = []
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
    """A tree with its graphs as items, which are not looked into."""
    met: set[int] = set()

    def stops(value: Any) -> bool:
        found = is_item(graph, value)
        if found:
            met.add(id(value))
        return found

    # JAX asks of every node and every leaf, once: what it is need not be asked again.
    try:
        with_paths, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=stops)
    except ValueError:
        deque(iter_leaves(tree), maxlen=0)  # which names the dict whose keys cannot be sorted
        raise
    flat = [value for _, value in with_paths]
    bases = [tuple(map(key_part, path)) for path, _ in with_paths]
    nodes = [i for i, value in enumerate(flat) if id(value) in met]
    items = tuple([NODE if id(value) in met else _item(value) for value in flat])
    structure = RefStructure(treedef, items, _NOTHING, ())
    return Tree(structure, flat, _NO_PLAN, nodes, [], bases)


def build(structure: RefStructure, values: Sequence[Any]) -> tuple[Any, Memory]:
    """The tree again, of fresh objects around these values, and what to remember of it."""
    count = len(structure.holders)
    leaves: list[Any] = []
    live: list[Any] = []
    for holder, value in zip(structure.holders, values[:count], strict=True):
        if not is_array(value):
            value = copy_containers(value)  # what the function does to a dict in a Variable must show as a change
        variable = None if holder.type is None else holder.type._new(value, holder.metadata)
        live.append(variable)
        leaves.append(value if variable is None else variable)
    index_ref = IndexMap()
    flat = put_together(structure.items, Unflattener(structure.graphdef, leaves, index_ref), values[count:])
    roots = [value for item, value in zip(structure.items, flat, strict=True) if item is NODE]
    return structure.treedef.unflatten(flat), Memory(live, index_ref, roots)


def put_together(items: Sequence[Any], graphs: Unflattener, arrays: Iterable[Any]) -> list[Any]:
    """What stands in the places of items: the next graph, the next array, or the static value itself."""
    rest = iter(arrays)
    return [graphs.node() if item is NODE else next(rest) if item is ARRAY else item.value for item in items]


_NOTHING: GraphDef[Any] = GraphDef((), (), 0)
_NO_PLAN = Plan(())


def _item(value: Any) -> Any:
    return ARRAY if is_array(value) or type(value) in NUMBERS else Fixed(value)


def _holder(leaf: Any) -> Holder:
    # A hijax Variable is one by `isinstance`, but is itself the value that JAX passes on.
    return Holder(type(leaf), leaf._nnx_metadata) if issubclass(type(leaf), Variable) else PLAIN


def named(path: Path, names: Sequence[str]) -> Path:
    """A path from the call, starting with the argument's name."""
    which, first, *rest = path
    if which == 0 and isinstance(first, int):
        return (names[first], *rest) if first < len(names) else ("args", first, *rest)
    return (first, *rest)


def repeats_of(plan: Plan) -> Iterator[tuple[int, Path, int]]:
    """What was met again in a plan, as (number, path, root)."""
    for root, (start, end) in enumerate(itertools.pairwise([*plan.repeat_starts, len(plan.repeats)])):
        for number, path in plan.repeats[start:end]:
            yield number, path, root


def check_levels(nodes: Iterable[Any]) -> None:
    """Refuses objects and Variables of another trace level.

    Raises:
        TraceLevelError: naming their type.
    """
    here = current_trace_state()
    for node in nodes:
        state = node._trace_state if type(node) in VARIABLE_TYPES else getattr(node, "_pytree__trace", None)
        if state is not None and state is not here and not state.is_valid():
            raise StructureError(
                f"Cannot extract graph node from different trace level: {type(node).__name__}",
                at=whereabouts.find(node, "given to a transform"),
                fix="pass it to the transform as an argument instead of closing over it",
            )
