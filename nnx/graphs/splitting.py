"""split, merge, state and clone: a graph's values apart from its structure.

The Variables in a state are the graph's own, not copies: to change one is to change the other. `merge` makes new
objects around them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from weft.core.paths import Path
from weft.nnx.errors import StructureError
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
    """Takes a graph apart: `graphdef, *states = split(node, *filters)`.

    Args:
        node: an object, a container or a Variable.
        filters: one for each state; the first that matches a value takes it. None at all stands for `...`.
        graph: whether to work on a graph (sharing and cycles are kept) or a tree.

    Returns:
        The structure and a state for each filter. The state of a lone Variable is the Variable.

    Raises:
        ValueError: if a value matches no filter; in tree mode, for something shared.

    >>> from weft.nnx.modules.containers import Dict
    >>> from weft.nnx.variable.kinds import BatchStat, Param
    >>> graphdef, params, rest = split(Dict(w=Param(1), m=BatchStat(2)), Param, ...)
    >>> list(params), list(rest), merge(graphdef, params, rest).m.get_value()
    (['w'], ['m'], 2)
    """
    graphdef, flat = flatten(node, graph=graph)
    return graphdef, *(nested_or_leaf(part) for part in split_flat(flat, filters))


def nested_or_leaf(flat: FlatState[Any]) -> Any:
    """A flat state as a state; the lone value at the root as it is."""
    if len(flat) == 1 and flat.paths[0] == ():
        return flat.leaves[0]
    return from_flat_state(flat)


def sorted_leaves_of(states: Any) -> list[Any]:
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
    # The order of the structure's leaves, whatever states they come from.
    pairs.sort(key=lambda pair: pair[0])
    return [value for _, value in pairs]


def merge(graphdef_or_graphstate: Any, /, *states: Any, copy: bool = False, recreate_variables: bool = True) -> Any:
    """Puts together what `split` or `unpack` took apart, as new objects.

    Args:
        graphdef_or_graphstate: the structure, or a `GraphState`.
        states: the states, in any order, or one list of leaves.
        copy: whether Variables in the states are copied, instead of becoming part of the new graph.
        recreate_variables: whether plain values in a Variable's place become Variables.

    Raises:
        TypeError: if the first argument is neither, or there is no state.
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
                raise StructureError(f"Expected GraphState object like the first, got {type(state).__name__}")
            if state._graphdef != graphdef:
                raise StructureError("GraphDef must be the same in all GraphStates that are put together")
    elif isinstance(graphdef_or_graphstate, GraphDef):
        graphdef = graphdef_or_graphstate
    else:
        refuse_foreign(graphdef_or_graphstate)
        raise TypeError(f"merge takes a GraphDef or a GraphState first, got {graphdef_or_graphstate!r}")
    if not states:
        raise TypeError(
            "merge() missing 1 required positional argument: 'state', of which a GraphDef needs at least one"
        )
    if isinstance(states[0], list):
        if len(states) != 1:
            raise StructureError("leaves as a list must be the only argument after the structure")
        leaves = states[0]
    else:
        leaves = sorted_leaves_of(states)
    return unflatten(graphdef, leaves, copy_variables=copy, recreate_variables=recreate_variables)


def state(node: Any, *filters: Filter, graph: bool | None = None) -> Any:
    """The values of a graph by path, or those that filters match.

    Returns:
        One state for no or one filter, else a tuple of them.

    Raises:
        TypeError: for what is no filter.
        ValueError: if `...` stands before another filter; in tree mode, for something shared.

    >>> from weft import nnx
    >>> model = nnx.Dict(w=nnx.Param(1.0), n=nnx.BatchStat(2.0))
    >>> nnx.to_pure_dict(nnx.state(model)), nnx.to_pure_dict(nnx.state(model, nnx.Param))
    ({'n': 2.0, 'w': 1.0}, {'w': 1.0})
    """
    _, flat = flatten(node, graph=graph)
    whole = flat.to_nested_state() if flat.paths != ((),) else flat.leaves[0]
    return filter_state(whole, *filters) if filters else whole


variables = state


def graphdef(node: Any, /, *, graph: bool | None = None) -> GraphDef[Any]:
    """The structure of a graph.

    Raises:
        ValueError: in tree mode, for something shared.

    >>> from weft import nnx
    >>> nnx.graphdef(nnx.Dict(w=nnx.Param(1.0))) == nnx.graphdef(nnx.Dict(w=nnx.Param(2.0)))
    True
    """
    return flatten(node, graph=graph, with_paths=False)[0]


def unpack(node: Any, *filters: Filter, graph: bool | None = None) -> Any:
    """Takes a graph apart into states that carry its structure with them, one for each filter. See `split`.

    Raises:
        TypeError: for what is no filter.
        ValueError: if a value matches no filter; in tree mode, for something shared.

    >>> from weft import nnx
    >>> params, rest = nnx.unpack(nnx.Dict(w=nnx.Param(1.0), n=nnx.BatchStat(2.0)), nnx.Param, ...)
    >>> list(params), nnx.merge(params, rest).n.get_value()
    (['w'], 2.0)
    """
    definition, *states = split(node, *filters, graph=graph)
    return single([GraphState(definition, state) for state in states])


def clone(node: Any, variables: bool = True, *, arrays: bool = False, graph: bool | None = None) -> Any:
    """A copy of a graph, with its sharing.

    Args:
        node: the graph.
        variables: whether its Variables are copied too; otherwise both share them.
        arrays: whether even the arrays are copied, so that either may be donated.
        graph: whether to work on a graph or a tree.

    Raises:
        ValueError: for `arrays` without `variables`.

    >>> from weft import nnx
    >>> model = nnx.Dict(w=nnx.Param(1.0))
    >>> nnx.clone(model).w is model.w, nnx.clone(model, variables=False).w is model.w
    (False, True)
    """
    if arrays and not variables:
        raise StructureError("to copy arrays, Variables must be copied too", fix="leave variables=True")
    definition, leaves = flatten(node, graph=graph)
    if arrays:
        copies = jax.tree.map(jax.numpy.copy, leaves.leaves)
        return unflatten(definition, copies)
    return unflatten(definition, leaves, copy_variables=variables)


def map(
    f: Callable[[Path, Any], Any], node: Any, /, *, graph: bool | None = None, recreate_variables: bool = True
) -> Any:
    """A graph of the same structure with `f(path, value)` for each Variable or array.

    Raises:
        ValueError: in tree mode, for something shared.

    >>> from weft import nnx
    >>> model = nnx.Dict(w=nnx.Param(1.0), n=nnx.BatchStat(2.0))
    >>> doubled = nnx.map(lambda path, value: value.replace(2 * value.get_value()), model)
    >>> doubled.w.get_value(), doubled.n.get_value()
    (2.0, 4.0)
    """
    definition, whole = split(node, graph=graph)
    mapped = map_state(f, whole) if isinstance(whole, State) else f((), whole)
    return merge(definition, mapped, recreate_variables=recreate_variables)


def call(graphdef_state: tuple[Any, Any], /) -> Any:
    """Calls a method of the graph that a (GraphDef, State) pair describes.

    Returns:
        A proxy: `call((graphdef, state)).method(x)` gives the method's result and the new pair. Attributes and items
        of it lead to methods of what is inside.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    >>> y, (graphdef, state) = nnx.call(nnx.split(model))(jnp.ones((1, 2)))
    >>> y.shape
    (1, 3)
    """

    return _apply(*graphdef_state)


def _apply(self: GraphDef[Any], state: Any, *states: Any, graph: bool | None = None) -> Any:
    """Calls a method of the graph with this structure and these states.

    Returns:
        A proxy: `graphdef.apply(state).method(x)` gives the method's result and the (GraphDef, State) after it.
    """

    def call_method(accessor: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        node = merge(self, state, *states)
        result = accessor(node)(*args, **kwargs)
        return result, split(node, graph=graph)

    return CallableProxy(call_method)


GraphDef.apply = _apply


def as_pure(tree: Any) -> Any:
    """A tree with the values of its Variables and refs in their place.

    >>> from weft import nnx
    >>> nnx.as_pure({"w": nnx.Param(1.0), "n": 2})
    {'n': 2, 'w': 1.0}
    """

    def pure_value(leaf: Any) -> Any:
        if isinstance(leaf, Variable):
            return as_pure(leaf.get_raw_value())
        return leaf[...] if is_array_ref(leaf) else leaf

    return jax.tree.map(pure_value, tree, is_leaf=lambda leaf: isinstance(leaf, Variable))
