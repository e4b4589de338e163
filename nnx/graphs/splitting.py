"""split, merge, state and clone: separate the values of a graph from its structure, and join them again.

The Variables in a state are the graph's own, not copies: writing into a Variable of the state changes the graph too.
`merge` makes new objects around them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from weft.core.paths import Path
from weft.nnx.errors import ArgumentKindError, StructureError
from weft.nnx.foreign import refuse_foreign
from weft.nnx.graphs.definitions import GraphDef
from weft.nnx.graphs.graph import flatten, sorted_leaves, unflatten
from weft.nnx.graphs.graphstate import GraphState
from weft.nnx.proxy_caller import CallableProxy
from weft.nnx.states.filters import Filter
from weft.nnx.states.states import FlatState, State, filter_state, from_flat_state, map_state, single, split_flat
from weft.nnx.states.traversals import flatten_to_sequence
from weft.nnx.variable.refs import is_array_ref
from weft.nnx.variable.variable import Variable

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
    whole = flat.to_nested_state() if flat.paths != ((),) else flat.leaves[0]
    # A Variable is its own State.
    if flat.paths == ((),) and not isinstance(whole, Variable):
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
