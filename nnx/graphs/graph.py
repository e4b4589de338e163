"""flatten and unflatten: from a graph to a structure and leaves, and back.

`flatten` numbers objects, Variables and refs in the order of its walk, and writes their definitions (see
`definitions`). `unflatten` rebuilds a graph from them. With a table of existing objects for outer indexes, it writes
into those instead of making new ones: that is how a transform updates the caller's objects.

In tree mode (`graph=False`) the structure is a treedef of JAX, and sharing is an error that names both paths.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from weft.nnx.config import graph_mode
from weft.nnx.errors import StructureError
from weft.nnx.graphs.definitions import GraphDef, IndexMap, RefMap, TreeNodeDef
from weft.nnx.graphs.flattening import Flattener
from weft.nnx.graphs.nodes import register_pytree_node_type
from weft.nnx.graphs.plan import is_object, plan_of
from weft.nnx.graphs.trees import tree_flatten, tree_unflatten
from weft.nnx.graphs.unflattening import Unflattener
from weft.nnx.states.states import FlatState, State
from weft.nnx.variable.variable import VARIABLE_TYPES

# The type of an element of a path, for annotations; flax exports it.
Key = Hashable

register_pytree_node_type(
    State,
    lambda state: (sorted(state._mapping.items()), None),
    lambda items, _: State(dict(items)),
    set_key=State.__setitem__,
    pop_key=lambda state, key: state._mapping.pop(key),
)


def flatten(
    node: Any,
    /,
    *,
    with_paths: bool = True,
    ref_index: RefMap | None = None,
    ref_outer_index: RefMap | None = None,
    graph: bool | None = None,
) -> tuple[GraphDef[Any], Any]:
    """Flattens a graph into its structure and its leaves.

    Args:
        node: an object, a container, a Variable, or any leaf.
        with_paths: whether to return the leaves with their paths, and as Variables; otherwise raw values in a list.
        ref_index: the numbers of nodes of earlier graphs, if several graphs share nodes; this call adds its own.
        ref_outer_index: the numbers that nodes had before a mutation (outer indexes).
        graph: whether to work on a graph or a tree.

    Returns:
        The structure, and a `FlatState` (or a list of leaves).

    Raises:
        ValueError: in tree mode, for a shared node, naming both paths.

    >>> from weft import nnx
    >>> graphdef, flat = nnx.flatten(nnx.Dict(w=nnx.Param(1.0), n=nnx.BatchStat(2.0)))
    >>> graphdef.num_leaves, flat.paths
    (2, (('n',), ('w',)))
    """
    if not graph_mode(graph):
        nodes, leaves, paths = tree_flatten(node)
        graphdef: GraphDef[Any] = GraphDef(nodes, (), len(leaves))
        return graphdef, FlatState.from_sorted_keys_values(paths, leaves) if with_paths else leaves
    # A plan has the whole answer until the structure changes. It has its own numbering, so only without `ref_index`.
    if ref_index is None and ref_outer_index is None and is_object(node):
        plan = plan_of((node,))
        if with_paths:
            return plan.graphdef, FlatState.from_sorted_keys_values(plan.paths, list(plan.leaves))
        return plan.graphdef, plan.read()
    walk = Flattener(RefMap() if ref_index is None else ref_index, ref_outer_index, with_paths)
    walk.root(node)
    if walk.paths is None:
        return walk.graphdef(), walk.leaves
    return walk.graphdef(), FlatState.from_sorted_keys_values(tuple(walk.paths), walk.leaves)


def sorted_leaves(mapping: Any) -> list[Any]:
    """The leaves of nested states and dicts, sorted by path."""
    leaves: list[Any] = []

    def visit(inner: Any) -> None:
        for key in sorted(inner):
            value = inner[key]
            # By exact types first: States of big models have thousands of entries, and `isinstance` with `State`, an
            # abstract base class, is slow.
            kind = type(value)
            if kind is dict:
                visit(value)
            elif kind not in VARIABLE_TYPES and isinstance(value, dict | State):
                visit(getattr(value, "_mapping", value))
            else:
                leaves.append(value)

    visit(getattr(mapping, "_mapping", mapping))
    return leaves


def unflatten(
    graphdef: GraphDef[Any],
    state: Any,
    /,
    *,
    index_ref: IndexMap | None = None,
    outer_index_outer_ref: IndexMap | None = None,
    copy_variables: bool = False,
    recreate_variables: bool = True,
) -> Any:
    """Rebuilds a graph from its structure and its leaves.

    Args:
        graphdef: the structure.
        state: the leaves: a `State`, a nested dict, a `FlatState`, or a list in order.
        index_ref: the nodes of earlier graphs by number, if several graphs share nodes; this call adds its own.
        outer_index_outer_ref: existing nodes by outer index; they are written into instead of creating new ones.
        copy_variables: whether Variables among the leaves are copied; else they become part of the new graph.
        recreate_variables: whether a plain leaf in a Variable's place becomes a Variable again.

    Raises:
        ValueError: if the leaves are too few or too many.

    >>> from weft import nnx
    >>> graphdef, flat = nnx.flatten(nnx.Dict(w=nnx.Param(1.0)))
    >>> nnx.unflatten(graphdef, [nnx.Param(2.0)]).w.get_value()
    2.0
    """
    match state:
        case list():
            leaves = state
        case FlatState():
            leaves = state.leaves
        case State() | dict():
            leaves = sorted_leaves(state)
        case _:
            raise StructureError(f"leaves must be a State, a dict, a FlatState or a list, got a {type(state).__name__}")
    if len(leaves) != graphdef.num_leaves:
        raise StructureError(f"Incorrect number of leaves: expected {graphdef.num_leaves}, got {len(leaves)}")
    # The graph is a single leaf, such as an array, which has no definition.
    if not graphdef.nodes:
        return leaves[0]
    if isinstance(graphdef.nodes[0], TreeNodeDef):
        return tree_unflatten(graphdef.nodes, leaves, copy_variables)
    index_ref = IndexMap() if index_ref is None else index_ref
    return Unflattener(graphdef, leaves, index_ref, outer_index_outer_ref, copy_variables, recreate_variables).node()
