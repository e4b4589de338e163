"""Unflattener: reads a structure and leaves, and rebuilds the graph or writes into existing objects."""

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
from weft.nnx.objects.objects import OBJECT, GraphNodeImpl, attributes_of, new_object
from weft.nnx.variable.refs import MARKS, ArrayRefOutput, NoUpdate, Repeated, is_array_ref, is_plain_array
from weft.nnx.variable.tracers import TraceState, current_trace_state
from weft.nnx.variable.variable import VARIABLE_TYPES, Variable

_store = object.__setattr__


class Unflattener:
    """Rebuilds graphs from a structure and its leaves, or writes into existing nodes.

    Args:
        graphdef: the structure.
        leaves: its leaves, in order.
        index_ref: the nodes of earlier graphs by number; this one adds its own.
        outer: existing nodes by outer index, which are written into instead of creating new ones.
        copy_variables: whether Variables among the leaves are copied.
        recreate_variables: whether a raw value in the place of a Variable becomes a Variable.
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
        # A copy, to which no `None` is added: the outer index of a new node is None, and looks up nothing.
        self._outer: dict[int | None, Any] = {**outer} if outer else {}
        self._copy = copy_variables
        self._recreate = recreate_variables
        self._now = current_trace_state()

    def node(self) -> Any:
        """Reads one node and everything below it."""
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
        # Nearly all objects come here, when a trace rebuilds arguments: no existing object is written into, and the
        # attributes were checked when the user set them, so `__setattr__` with its checks is bypassed.
        if definition.outer_index is None and GRAPH_TYPES.get(definition.type) is OBJECT:
            return self._new_object(definition)
        impl = impl_of_type(definition.type)
        if impl is None:
            raise StructureError(
                f"{definition.type.__name__} is not a registered node type", fix="register the type again"
            )
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
        # Numbered before its children are read, because a cycle leads back to it from below.
        self.index_ref[definition.index] = node  # type: ignore[index]
        children = self._children(definition.num_attributes)
        # The children were read before the old ones are dropped: one of them may be an old child in a new place.
        if definition.outer_index in self._outer:
            impl.clear(node)
        if impl is OBJECT:
            object.__setattr__(node, "_pytree__nodes", definition.metadata[1])
        impl.init(node, children)
        return node

    def _new_object(self, definition: NodeDef[Any]) -> Any:
        node = new_object(definition.type, definition.metadata[1], self._now)
        self.index_ref[definition.index] = node  # type: ignore[index]
        # The attributes are written after all children are read, in one `update`, and in the order of the definition.
        values = attributes_of(node)
        children = self._children(definition.num_attributes)
        if definition.type._pytree__has_int_keys:
            # `List` names its attributes "0", "1", ...; definitions have ints, so that 10 is sorted after 2.
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
        # Nearly all Variables come here; below are refs, copies, and the caller's own Variables, which are written
        # into.
        if refdef is None and definition.outer_index is None and not self._copy:
            value = next(self._leaves)
            if self._recreate and type(value) not in VARIABLE_TYPES and not isinstance(value, Variable):
                kind, metadata = definition.type, definition.metadata
                is_box = metadata["hijax"]
                value = (
                    kind.from_metadata(value, metadata) if is_box else _new_variable(kind, value, metadata, self._now)
                )
            self.index_ref[definition.index] = value
            return value
        if type(refdef) is NodeRef:
            value = self.index_ref[refdef.index]
        else:
            value = next(self._leaves)
            is_variable = type(value) in VARIABLE_TYPES or isinstance(value, Variable)
            # No ref, container, hijax or overridden `copy`: a copy is a new Variable around the same array.
            is_plain = is_variable and type(value).copy is Variable.copy and is_plain_array(value._raw_value)
            if refdef is None and self._copy and is_plain and not value.hijax:
                value = _new_variable(type(value), value._raw_value, value._nnx_metadata, self._now)
            elif is_variable and self._copy:
                value = value.copy(_copy_ref=not isinstance(value.get_raw_value(), MARKS))
            # A ref in the leaf is used as it is; an array that left a trace for a new ref becomes one again.
            if refdef is not None:
                value = self._with_ref(refdef, value, is_variable)
        existing = self._outer.get(definition.outer_index)
        if existing is not None:
            if not isinstance(existing, Variable):
                raise StructureError(f"expected a Variable for outer index {definition.outer_index}, got {existing!r}")
            existing.update_from_state(value) if isinstance(value, Variable) else existing.set_raw_value(value)
            variable = existing
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
        existing = self._outer.get(definition.outer_index)
        if existing is not None:
            if not is_array_ref(existing) or type(leaf) is not NoUpdate:
                raise StructureError(f"an array ref of the caller cannot be replaced by {leaf!r}")
            leaf = existing
        elif isinstance(leaf, NoUpdate | Repeated):
            raise StructureError(f"expected the array of a new ref, got {leaf!r}")
        elif isinstance(leaf, ArrayRefOutput):
            leaf = jax.new_ref(leaf.value)
        self.index_ref[definition.index] = leaf
        return leaf


def _new_variable(kind: type[Variable[Any]], value: Any, metadata: Any, now: TraceState) -> Any:
    # Past `__init__` and `copy`, which run hooks and checks: `merge` copies every Variable of a model.
    variable = object.__new__(kind)
    _store(variable, "_raw_value", value)
    _store(variable, "_nnx_metadata", metadata)
    _store(variable, "_trace_state", now)
    return variable
