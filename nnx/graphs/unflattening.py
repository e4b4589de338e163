"""Unflattener: reads a description of a graph, and makes it anew or fills what exists already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import jax
from weft.nnx.errors import StructureError
from weft.nnx.graphs.definitions import (
    ArrayRefDef,
    GraphDef,
    IndexMap,
    LeafAttr,
    NodeDef,
    NodeRef,
    Static,
    VariableDef,
)
from weft.nnx.graphs.nodes import impl_of_type
from weft.nnx.objects.attributes import GRAPH_TYPES
from weft.nnx.objects.objects import (
    OBJECT,
    GraphNodeImpl,
    attributes_of,
    new_object,
)
from weft.nnx.variable.refs import MARKS, ArrayRefOutput, NoUpdate, Repeated, is_array_ref, is_plain_array
from weft.nnx.variable.tracers import current_trace_state
from weft.nnx.variable.variable import VARIABLE_TYPES, Variable

_store = object.__setattr__


class Unflattener:
    """One reading of a structure.

    Args:
        graphdef: the structure.
        leaves: its leaves, in order.
        index_ref: what has a number already; it is extended.
        outer: what has an outer index, to be filled instead of making another.
        copy_variables: whether Variables among the leaves are copied.
        recreate_variables: whether a leaf in a Variable's place that is none becomes one.
    """

    def __init__(
        self,
        graphdef: GraphDef[Any],
        leaves: Iterable[Any],
        index_ref: IndexMap,
        outer: IndexMap | None = None,
        copy_variables: bool = False,
        recreate_variables: bool = True,
    ):
        self._nodes: Iterator[Any] = iter(graphdef.nodes)
        self._attributes = iter(graphdef.attributes)
        self._leaves = iter(leaves)
        self.index_ref = index_ref
        self._outer: dict[int | None, Any] = {**outer} if outer else {}
        self._copy = copy_variables
        self._recreate = recreate_variables
        self._now = current_trace_state()

    def node(self) -> Any:
        """Reads one node, with all that is below it."""
        definition = next(self._nodes)
        kind = type(definition)
        if kind is VariableDef:
            return self._variable(definition)
        if kind is NodeDef:
            return self._with_children(definition)
        if kind is NodeRef:
            return self.index_ref[definition.index]
        return self._ref(definition, next(self._leaves))

    def _with_children(self, definition: NodeDef[Any]) -> Any:
        # The way of nearly all objects, when arguments are rebuilt in a trace: nothing outside is to be filled, and
        # attributes are put in as they were, past `__setattr__` and its checks.
        if definition.outer_index is None and GRAPH_TYPES.get(definition.type) is OBJECT:
            return self._new_object(definition)
        impl = impl_of_type(definition.type)
        if impl is None:
            raise StructureError(f"no node type any more: {definition.type.__name__}", fix="register it")
        if not isinstance(impl, GraphNodeImpl):
            return impl.unflatten(self._children(definition.num_attributes), definition.metadata)
        node = self._outer.get(definition.outer_index)
        if node is None:
            node = impl.create_empty(definition.metadata)
        elif type(node) is not definition.type:
            raise StructureError(
                f"expected a {definition.type.__name__} for outer index {definition.outer_index}, "
                f"but found a {type(node).__name__}"
            )
        # Cycles lead back to the node while its children are read, so it has its number before.
        self.index_ref[definition.index] = node  # type: ignore[index]
        children = self._children(definition.num_attributes)
        if definition.outer_index in self._outer:
            impl.clear(node)
        if impl is OBJECT:
            object.__setattr__(node, "_pytree__nodes", definition.metadata[1])
        impl.init(node, children)
        return node

    def _new_object(self, definition: NodeDef[Any]) -> Any:
        node = new_object(definition.type, definition.metadata[1], self._now)
        self.index_ref[definition.index] = node  # type: ignore[index]
        values = attributes_of(node)
        children = self._children(definition.num_attributes)
        if definition.type._pytree__has_int_keys:
            # Attributes are named by strings; a list's are described by ints, so that they sort as numbers do.
            children = [(str(key), value) for key, value in children]
        values.update(children)
        return node

    def _children(self, count: int) -> list[tuple[Any, Any]]:
        children: list[tuple[Any, Any]] = []
        attributes = self._attributes
        for _ in range(count):
            key, mark = next(attributes)
            if isinstance(mark, Static):
                children.append((key, mark.value))
            elif type(mark) is LeafAttr:
                children.append((key, next(self._leaves)))
            else:
                children.append((key, self.node()))
        return children

    def _variable(self, definition: VariableDef[Any]) -> Any:
        refdef = definition.array_refdef
        # The way of nearly all Variables; below are refs, copies, and those of the caller that are filled.
        if refdef is None and definition.outer_index is None and not self._copy:
            value = next(self._leaves)
            if self._recreate and type(value) not in VARIABLE_TYPES and not isinstance(value, Variable):
                value = _new_variable(definition, value, self._now)
            self.index_ref[definition.index] = value
            return value
        if type(refdef) is NodeRef:
            value = self.index_ref[refdef.index]
        else:
            value = next(self._leaves)
            is_variable = type(value) in VARIABLE_TYPES or isinstance(value, Variable)
            if refdef is None and is_variable and self._copy and _copies_plainly(value):
                value = _plain_copy(value, self._now)
            elif is_variable and self._copy:
                value = value.copy(_copy_ref=not isinstance(value.get_raw_value(), MARKS))
            if refdef is not None:
                value = self._with_ref(refdef, value, is_variable)
        known = self._outer.get(definition.outer_index)
        if known is not None:
            if not isinstance(known, Variable):
                raise StructureError(f"expected a Variable for outer index {definition.outer_index}, got {known!r}")
            known.update_from_state(value) if isinstance(value, Variable) else known.set_raw_value(value)
            variable = known
        elif not self._recreate or type(value) in VARIABLE_TYPES or isinstance(value, Variable):
            variable = value
        else:
            variable = definition.type.from_metadata(value, definition.metadata)
        self.index_ref[definition.index] = variable
        return variable

    def _with_ref(self, refdef: Any, value: Any, is_variable: bool) -> Any:
        if not is_variable:
            return self._ref(refdef, value)
        inner = value.get_raw_value()
        ref = self._ref(refdef, inner)
        if ref is not inner:
            value.set_raw_value(ref)
        return value

    def _ref(self, definition: ArrayRefDef, leaf: Any) -> Any:
        known = self._outer.get(definition.outer_index)
        if known is not None:
            if not is_array_ref(known) or type(leaf) is not NoUpdate:
                raise StructureError(f"a ref that is shared with the outside cannot become {leaf!r}")
            leaf = known
        elif isinstance(leaf, NoUpdate | Repeated):
            raise StructureError(f"expected the value of a ref, got {leaf!r}")
        elif isinstance(leaf, ArrayRefOutput):
            leaf = jax.new_ref(leaf.value)
        self.index_ref[definition.index] = leaf
        return leaf


def _copies_plainly(variable: Any) -> bool:
    """Whether a copy of a Variable is another around the same array: no ref, no container, no `copy` of its own."""
    return type(variable).copy is Variable.copy and is_plain_array(variable._raw_value) and not variable.hijax


def _plain_copy(variable: Any, now: Any) -> Any:
    twin = object.__new__(type(variable))
    _store(twin, "_raw_value", variable._raw_value)
    _store(twin, "_nnx_metadata", variable._nnx_metadata)
    _store(twin, "_trace_state", now)
    return twin


def _new_variable(definition: VariableDef[Any], value: Any, now: Any) -> Any:
    if definition.metadata["hijax"]:
        return definition.type.from_metadata(value, definition.metadata)
    variable = object.__new__(definition.type)
    _store(variable, "_raw_value", value)
    _store(variable, "_nnx_metadata", definition.metadata)
    _store(variable, "_trace_state", now)
    return variable
