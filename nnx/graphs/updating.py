"""update, pop and set_metadata: functions that change a graph in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
from weft.core.paths import Path, format_path
from weft.nnx.config import graph_mode
from weft.nnx.errors import ArgumentKindError, FilterError, StructureError
from weft.nnx.foreign import refuse_foreign
from weft.nnx.graphs.nodes import child_items, get_node_impl, is_node, is_node_leaf
from weft.nnx.graphs.splitting import flatten
from weft.nnx.objects.attributes import GRAPH_TYPES
from weft.nnx.objects.objects import OBJECT, attributes_of
from weft.nnx.states.filters import Filter, to_predicate
from weft.nnx.states.states import State, from_flat_state, merge_state, single
from weft.nnx.variable.refs import MARKS, is_array_ref
from weft.nnx.variable.tracers import TraceState, current_trace_state
from weft.nnx.variable.variable import VARIABLE_TYPES, Variable


def update(node: Any, state: Any, /, *states: Any) -> None:
    """Writes States into a graph in place: values into its Variables, and entries that it does not have as attributes.

    Raises:
        ValueError: if a state does not fit the graph.

    >>> from weft import nnx
    >>> model = nnx.Dict(w=nnx.Param(1.0))
    >>> nnx.update(model, nnx.state(nnx.Dict(w=nnx.Param(2.0))))
    >>> model.w.get_value()
    2.0
    """
    now = current_trace_state()
    for part in (state, *states):
        refuse_foreign(part)
    if isinstance(node, Variable):
        # A split of a bare Variable by several filters gives a State for each of them, of which all but one are empty.
        nonempty = [part for part in (state, *states) if not isinstance(part, Mapping) or part]
        if states and len(nonempty) != 1:
            raise StructureError(f"a Variable is updated from one state that is not empty, got {len(nonempty)}")
        _update_variable(node, nonempty[0] if states else state, now)
    else:
        entries, refs, values = list[_Entry](), list[Any](), list[Any]()
        _plan(node, merge_state(state, *states) if states else state, (), entries, refs, values)
        # The graph may refuse an entry that it does not have: then nothing is written, and no value has been.
        for i, entry in enumerate(entries):
            try:
                entry.impl.set_key(entry.node, entry.key, entry.value)
            except BaseException:  # also after an interrupt
                for done in reversed(entries[:i]):
                    if done.before is _ABSENT:
                        done.impl.pop_key(done.node, done.key)
                    else:
                        done.impl.set_key(done.node, done.key, done.before)
                raise
        for ref, value in refs:
            ref[...] = value
        for variable, value in values:
            _update_variable(variable, value, now)


_ABSENT = object()


class _Entry(NamedTuple):
    """An item that an update sets in a node, and the item that was there before, or `_ABSENT`."""

    impl: Any
    node: Any
    key: Any
    value: Any
    before: Any


def _update_variable(variable: Any, value: Any, now: TraceState) -> None:
    if isinstance(value, Variable):
        # Hooks and checks are bypassed: at the same trace level and with the same metadata object there is nothing to
        # check, and `update` comes here for every Variable of a big model.
        if variable._trace_state is now and value._nnx_metadata is variable._nnx_metadata:
            object.__setattr__(variable, "_raw_value", value._raw_value)
        else:
            variable.update_from_state(value)
    elif isinstance(value, State) and not value:
        return  # a split under one numbering gives an empty State for a Variable that an earlier graph holds
    elif is_array_ref(variable.get_raw_value()) and (isinstance(value, jax.Array) or is_array_ref(value)):
        variable[...] = value[...]
    else:
        variable.set_raw_value(value, _unsafe_bypass_check=True)


def _plan(node: Any, state: Any, path: Path, entries: list[_Entry], refs: list[Any], values: list[Any]) -> None:
    """Lists what an update writes, without writing it: entries, and pairs of a ref, or a Variable, and its value."""
    impl = get_node_impl(node)
    if impl is None:
        raise ArgumentKindError(f"cannot update a {type(node).__name__}: expected an object, a container or a Variable")
    is_plain = impl is OBJECT and not node._pytree__has_int_keys
    # The real attribute dict is read without a copy: `update` visits every object of a model at each training step.
    children = attributes_of(node) if is_plain else dict(child_items(node))
    items = list((state._mapping if type(state) is State else state).items())
    # A List puts what it lacks at its end; a restored State may have 10 before 2.
    if impl is OBJECT and not is_plain:
        items.sort(key=lambda item: (type(item[0]).__name__, item[0]))
    for key, value in items:
        current = children.get(key, _ABSENT)
        kind = type(current)
        if kind in VARIABLE_TYPES or isinstance(current, Variable):
            values.append((current, value))
        elif kind in GRAPH_TYPES or (current is not _ABSENT and is_node(current)):
            if is_node_leaf(value):
                raise StructureError(f"Expected a subgraph, got a {type(value).__name__}", at=format_path((*path, key)))
            _plan(current, value, (*path, key), entries, refs, values)
        elif current is not _ABSENT and is_array_ref(current):
            refs.append((current, value))
        else:
            if impl.set_key is None:
                raise StructureError(
                    f"Cannot set key {key!r} on an immutable {type(node).__name__}", at=format_path((*path, key))
                )
            if current is _ABSENT and isinstance(value, Variable):
                # The State's Variable stays its own: sharing one with the graph, each would see the other's writes.
                value = value.copy(_copy_ref=not isinstance(value.get_raw_value(), MARKS))
            entries.append(_Entry(impl, node, key, value, current))


def pop(node: Any, *filters: Filter) -> Any:
    """Removes the Variables that filters match from a graph, in place, and returns them.

    A shared Variable is removed at its first path only, as in flax.

    Returns:
        One State for one filter, else a tuple of States.

    Raises:
        ValueError: without filters, or if a matching Variable is in a container that cannot be mutated (a tuple).

    >>> from weft import nnx
    >>> model = nnx.Dict(w=nnx.Param(1.0), seen=nnx.Intermediate(2.0))
    >>> nnx.to_pure_dict(nnx.pop(model, nnx.Intermediate)), hasattr(model, "seen")
    ({'seen': 2.0}, False)
    """
    if not filters:
        raise FilterError(
            "pop needs at least one filter", fix="name the Variables to remove: nnx.pop(model, nnx.Intermediate)"
        )
    # All filters are read, and all Variables found, before one is removed: an error leaves the graph as it is.
    tests = [to_predicate(filter) for filter in filters]
    popped: list[dict[Path, Any]] = [{} for _ in tests]
    # From the end, because a List closes the gap that an element leaves.
    for pop_key, container, key in reversed(list(_matching(node, (), set(), tests, popped))):
        pop_key(container, key)
    return single([from_flat_state(part) for part in popped])


def _matching(
    node: Any, path: Path, seen: set[int], tests: list[Any], popped: list[dict[Path, Any]]
) -> Iterator[tuple[Callable[[Any, Any], Any], Any, Any]]:
    """Puts the Variables that filters match into `popped`, and yields how each is removed from its container."""
    if id(node) in seen:
        return
    seen.add(id(node))
    impl = get_node_impl(node)
    if impl is None:
        raise ArgumentKindError(f"cannot pop from a {type(node).__name__}: expected an object or a container")
    for key, value in child_items(node):
        where = (*path, key)
        if is_node(value):
            yield from _matching(value, where, seen, tests, popped)
            continue
        if not is_node_leaf(value) or id(value) in seen:
            continue
        place = next((i for i, test in enumerate(tests) if test(where, value)), None)
        if place is not None:
            if impl.pop_key is None:
                raise StructureError(f"Cannot pop from a {type(node).__name__}", at=format_path(where))
            seen.add(id(value))
            popped[place][where] = value
            yield impl.pop_key, node, key


def set_metadata(node: Any, /, *, only: Filter = Variable, **metadata: Any) -> None:
    """Sets metadata of all Variables of a graph, or of those that a filter matches, in place.

    Raises:
        TypeError: for a value that is no filter.

    >>> from weft import nnx
    >>> model = nnx.Dict(w=nnx.Param(1.0), n=nnx.BatchStat(2.0))
    >>> nnx.set_metadata(model, only=nnx.Param, frozen=True)
    >>> model.w.frozen, hasattr(model.n, "frozen")
    (True, False)
    """
    test = to_predicate(only)
    _, flat = flatten(node, graph=graph_mode(None))
    for path, value in flat:
        if isinstance(value, Variable) and test(path, value):
            value.set_metadata(**metadata)
