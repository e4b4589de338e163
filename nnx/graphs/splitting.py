"""split, merge, state and clone, and under them flatten and unflatten: a graph's structure and its values, and back.

`flatten` numbers objects, Variables and refs in the order of its walk, and writes their definitions (see
`definitions`). `unflatten` rebuilds a graph from them. With a table of existing objects for outer indexes, it writes
into those instead of making new ones: that is how a transform updates the caller's objects.

In tree mode (`graph=False`) the structure is a treedef of JAX, and sharing is an error that names both paths.

The Variables in a state are the graph's own, not copies: writing into a Variable of the state changes the graph too.
`merge` makes new objects around them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import jax
from weft.core.paths import Path
from weft.nnx.config import graph_mode
from weft.nnx.errors import ArgumentKindError, StructureError
from weft.nnx.foreign import refuse_foreign
from weft.nnx.graphs.definitions import GraphDef, GraphState, IndexMap, RefMap, TreeNodeDef
from weft.nnx.graphs.flattening import Flattener
from weft.nnx.graphs.nodes import register_pytree_node_type
from weft.nnx.graphs.plan import is_object, plan_of
from weft.nnx.graphs.trees import tree_flatten, tree_unflatten
from weft.nnx.graphs.unflattening import Unflattener
from weft.nnx.proxy_caller import CallableProxy
from weft.nnx.states.filters import Filter
from weft.nnx.states.states import FlatState, State, filter_state, from_flat_state, map_state, single, split_flat
from weft.nnx.states.traversals import flatten_to_sequence
from weft.nnx.variable.refs import is_array_ref
from weft.nnx.variable.variable import VARIABLE_TYPES, Variable

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
    walk = Flattener(RefMap() if ref_index is None else ref_index, ref_outer_index, with_paths=with_paths)
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


N = TypeVar("N")
PureState = tuple[GraphDef[N], State]


def split(node: Any, *filters: Filter, graph: bool | None = None) -> tuple[Any, ...]:
    """Splits a graph into its structure and States: `graphdef, *states = split(node, *filters)`.

    Args:
        node: an object, a container or a Variable.
        filters: one for each State; a value goes to the first that matches. No filters at all are like a single `...`.
        graph: whether to work on a graph, with sharing and cycles, or on a tree.

    Returns:
        The structure, and a State for each filter. If `node` is a Variable, its State is that Variable.

    Raises:
        ValueError: if a value matches no filter; in tree mode, for a shared node.

    >>> from weft.nnx.modules.containers import Dict
    >>> from weft.nnx.variable.kinds import BatchStat, Param
    >>> graphdef, params, rest = split(Dict(w=Param(1), m=BatchStat(2)), Param, ...)
    >>> list(params), list(rest), merge(graphdef, params, rest).m.get_value()
    (['w'], ['m'], 2)
    """
    graphdef, flat = flatten(node, graph=graph)
    return graphdef, *(nested_or_leaf(part) for part in split_flat(flat, filters))


def nested_or_leaf(flat: FlatState[Any]) -> Any:
    """Converts a flat state to a State; if it has only a value at the root path, returns that value."""
    if len(flat) == 1 and flat.paths[0] == ():
        return flat.leaves[0]
    return from_flat_state(flat)


def sorted_leaves_of(states: Any) -> list[Any]:
    """The leaves of one or several States, or of a leaf that is its own State, in the order of the structure."""
    # The usual merge of one State: its nested order is the order of the leaves, so no paths are built and sorted.
    if len(states) == 1 and type(states[0]) in (dict, State):
        return sorted_leaves(states[0])
    pairs: list[tuple[Path, Any]] = []
    for state in states:
        if isinstance(state, dict | State | GraphState):
            pairs.extend(flatten_to_sequence(state._mapping if isinstance(state, State) else state))
        elif isinstance(state, FlatState):
            pairs.extend(state)
        else:
            pairs.append(((), state))
    # A structure lists its leaves sorted by path, but users pass the States of a split in any order.
    pairs.sort(key=lambda pair: pair[0])
    return [value for _, value in pairs]


def merge(graphdef_or_graphstate: Any, /, *states: Any, copy: bool = False, recreate_variables: bool = True) -> Any:
    """Rebuilds a graph from the results of `split` or `unpack`, out of new objects.

    Args:
        graphdef_or_graphstate: the structure, or a `GraphState`.
        states: the states, in any order, or one list of leaves.
        copy: whether Variables in the states are copied, instead of becoming part of the new graph.
        recreate_variables: whether plain values in a Variable's place become Variables.

    Raises:
        TypeError: if the first argument is neither a GraphDef nor a GraphState, or no State follows a GraphDef.
        ValueError: if the states do not fit the structure.

    >>> from weft import nnx
    >>> graphdef, params, rest = nnx.split(nnx.Dict(w=nnx.Param(1.0), n=nnx.BatchStat(2.0)), nnx.Param, ...)
    >>> model = nnx.merge(graphdef, params, rest)
    >>> model.w.get_value(), model.n.get_value()
    (1.0, 2.0)
    """
    if isinstance(graphdef_or_graphstate, GraphState):
        states = (graphdef_or_graphstate, *states)
        graphdef = graphdef_or_graphstate._graphdef
        for state in states:
            if not isinstance(state, GraphState):
                raise StructureError(f"Expected GraphState object like the first argument, got {type(state).__name__}")
            if state._graphdef != graphdef:
                raise StructureError("GraphDef must be the same in all GraphStates of one merge")
    elif isinstance(graphdef_or_graphstate, GraphDef):
        graphdef = graphdef_or_graphstate
    else:
        refuse_foreign(graphdef_or_graphstate)
        raise TypeError(f"merge takes a GraphDef or a GraphState first, got {graphdef_or_graphstate!r}")
    if not states:
        raise TypeError(
            "merge() missing 1 required positional argument: 'state', of which a GraphDef needs at least one"
        )
    # `flatten(..., with_paths=False)` returns such a list, already in the order of the structure.
    if isinstance(states[0], list):
        if len(states) != 1:
            raise StructureError("a list of leaves must be the only argument after the GraphDef")
        leaves = states[0]
    else:
        leaves = sorted_leaves_of(states)
    return unflatten(graphdef, leaves, copy_variables=copy, recreate_variables=recreate_variables)


def state(node: Any, *filters: Filter, graph: bool | None = None) -> Any:
    """Returns the State of a graph: its Variables and arrays by path, or those that filters match.

    Returns:
        One State without filters or with one filter, else a tuple of States.

    Raises:
        TypeError: for a value that is no filter.
        ArgumentKindError: for a node that is neither an object, a container nor a Variable.
        ValueError: if `...` stands before another filter; in tree mode, for a shared node.

    >>> from weft import nnx
    >>> model = nnx.Dict(w=nnx.Param(1.0), n=nnx.BatchStat(2.0))
    >>> nnx.to_pure_dict(nnx.state(model)), nnx.to_pure_dict(nnx.state(model, nnx.Param))
    ({'n': 2.0, 'w': 1.0}, {'w': 1.0})
    """
    _, flat = flatten(node, graph=graph)
    whole = nested_or_leaf(flat)
    # A Variable is its own State; any other node that is itself the leaf has no State.
    if not isinstance(whole, State | Variable):
        raise ArgumentKindError(f"nnx.state takes an object, a container or a Variable, not {node!r:.80}")
    return filter_state(whole, *filters) if filters else whole


variables = state


def graphdef(node: Any, /, *, graph: bool | None = None) -> GraphDef[Any]:
    """Returns the structure of a graph.

    Raises:
        ValueError: in tree mode, for a shared node.

    >>> from weft import nnx
    >>> nnx.graphdef(nnx.Dict(w=nnx.Param(1.0))) == nnx.graphdef(nnx.Dict(w=nnx.Param(2.0)))
    True
    """
    return flatten(node, graph=graph, with_paths=False)[0]


def unpack(node: Any, *filters: Filter, graph: bool | None = None) -> Any:
    """Splits a graph into GraphStates, one for each filter: States that have the graph's structure with them.

    Raises:
        TypeError: for a value that is no filter.
        ValueError: if a value matches no filter; in tree mode, for a shared node.

    >>> from weft import nnx
    >>> params, rest = nnx.unpack(nnx.Dict(w=nnx.Param(1.0), n=nnx.BatchStat(2.0)), nnx.Param, ...)
    >>> list(params), nnx.merge(params, rest).n.get_value()
    (['w'], 2.0)
    """
    definition, *states = split(node, *filters, graph=graph)
    return single([GraphState(definition, state) for state in states])


def clone(node: Any, variables: bool = True, *, arrays: bool = False, graph: bool | None = None) -> Any:
    """Copies a graph, with its sharing.

    Args:
        node: the graph.
        variables: whether to copy its Variables too; otherwise the copy shares them.
        arrays: whether to copy even the arrays, so that either graph may be donated to jit.
        graph: whether to work on a graph or a tree.

    Raises:
        ValueError: for `arrays` without `variables`.

    >>> from weft import nnx
    >>> model = nnx.Dict(w=nnx.Param(1.0))
    >>> nnx.clone(model).w is model.w, nnx.clone(model, variables=False).w is model.w
    (False, True)
    """
    if arrays and not variables:
        raise StructureError("clone(arrays=True) must copy the Variables too", fix="leave variables=True")
    definition, leaves = flatten(node, graph=graph)
    if arrays:
        copies = jax.tree.map(jax.numpy.copy, leaves.leaves)
        return unflatten(definition, copies)
    return unflatten(definition, leaves, copy_variables=variables)


def map(
    f: Callable[[Path, Any], Any], node: Any, /, *, graph: bool | None = None, recreate_variables: bool = True
) -> Any:
    """Returns a graph of the same structure with `f(path, value)` in place of each Variable or array.

    Raises:
        ValueError: in tree mode, for a shared node.

    >>> from weft import nnx
    >>> model = nnx.Dict(w=nnx.Param(1.0), n=nnx.BatchStat(2.0))
    >>> doubled = nnx.map(lambda path, value: value.replace(2 * value.get_value()), model)
    >>> doubled.w.get_value(), doubled.n.get_value()
    (2.0, 4.0)
    """
    # By split and merge, which make new objects: the original graph must not change.
    definition, whole = split(node, graph=graph)
    mapped = map_state(f, whole) if isinstance(whole, State) else f((), whole)
    return merge(definition, mapped, recreate_variables=recreate_variables)


def call(graphdef_state: tuple[Any, Any], /) -> Any:
    """Calls a method of the graph of a (GraphDef, State) pair, without mutating the pair.

    Returns:
        A proxy: `call((graphdef, state)).method(x)` returns the method's result and a new pair. The proxy's attributes
        and items lead to methods of submodules: `call(pair).layers[0](x)`.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    >>> y, (graphdef, state) = nnx.call(nnx.split(model))(jnp.ones((1, 2)))
    >>> y.shape
    (1, 3)
    """

    return _apply(*graphdef_state)


def _apply(self: GraphDef[Any], state: Any, *states: Any, graph: bool | None = None) -> Any:
    """Calls a method of the graph with this structure and these States.

    Returns:
        A proxy: `graphdef.apply(state).method(x)` returns the method's result and the new (GraphDef, State).
    """

    def call_method(accessor: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        # A new object for each call, so the mutations of the method do not reach the caller's States.
        node = merge(self, state, *states)
        result = accessor(node)(*args, **kwargs)
        return result, split(node, graph=graph)

    return CallableProxy(call_method)


GraphDef.apply = _apply


def as_pure(tree: Any) -> Any:
    """Replaces the Variables and refs of a tree by their values.

    >>> from weft import nnx
    >>> nnx.as_pure({"w": nnx.Param(1.0), "n": 2})
    {'n': 2, 'w': 1.0}
    """

    def pure_value(leaf: Any) -> Any:
        if isinstance(leaf, Variable):
            return as_pure(leaf.get_raw_value())
        return leaf[...] if is_array_ref(leaf) else leaf

    return jax.tree.map(pure_value, tree, is_leaf=lambda leaf: isinstance(leaf, Variable))
