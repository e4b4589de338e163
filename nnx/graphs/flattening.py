"""Flattener: walks a graph depth first, numbers its nodes, and writes their definitions (see `definitions`)."""

from __future__ import annotations

from typing import Any

from weft.core.paths import Path
from weft.nnx.graphs.definitions import (
    LEAF_ATTR,
    NODE_ATTR,
    ArrayRefDef,
    GraphDef,
    NodeDef,
    NodeRef,
    RefMap,
    Static,
    VariableDef,
)
from weft.nnx.graphs.nodes import GENERIC, GenericPytree, get_node_impl
from weft.nnx.objects.attributes import GRAPH_TYPES, is_array_leaf
from weft.nnx.objects.objects import (
    OBJECT,
    DataElem,
    GraphNodeImpl,
    StaticElem,
    object_items,
)
from weft.nnx.variable.refs import NO_UPDATE, REPEATED, ArrayRefOutput, is_array_ref
from weft.nnx.variable.variable import VARIABLE_TYPES, Variable


class Flattener:
    """A walk over a graph, or over several graphs under one numbering, which writes definitions and leaves.

    Attributes:
        nodes, attributes: the definitions so far.
        leaves, paths: the leaves so far and their paths; `paths` is None if nobody asked for them.
        repeats: (number, path) for each further path to a node.
    """

    def __init__(self, ref_index: RefMap, ref_outer_index: RefMap | None, *, with_paths: bool):
        self.ref_index = ref_index
        self.ref_outer_index = ref_outer_index
        self.nodes: list[Any] = []
        self.attributes: list[tuple[Any, Any]] = []
        self.leaves: list[Any] = []
        self.paths: list[Path] | None = [] if with_paths else None
        self.repeats: list[tuple[int, Path]] = []
        self._numbers = ref_index._mapping
        self._outers: dict[int, tuple[Any, int]] = {} if ref_outer_index is None else ref_outer_index._mapping

    def graphdef(self) -> GraphDef[Any]:
        return GraphDef(self.nodes, self.attributes, len(self.leaves))

    def root(self, node: Any) -> None:
        """Walks one more graph; a value that is no node is a graph of one leaf."""
        if not self._node(node, ()):
            self._leaf(node, ())

    def _leaf(self, value: Any, path: Path) -> None:
        self.leaves.append(value)
        if self.paths is not None:
            self.paths.append(path)

    def _number(self, node: Any) -> int:
        number = len(self._numbers)
        # The table keeps the node alive: Python would give its `id` to a later object.
        self._numbers[id(node)] = (node, number)
        return number

    # Repeats keep their path: prefixes are checked for every path to a Variable, and tree mode names both.
    def _again(self, node: Any, path: Path) -> bool:
        numbered = self._numbers.get(id(node))
        if numbered is None:
            return False
        self.nodes.append(NodeRef(numbered[1]))
        self.repeats.append((numbered[1], path))
        return True

    def _outer(self, node: Any) -> int | None:
        numbered = self._outers.get(id(node))
        return None if numbered is None else numbered[1]

    def _node(self, node: Any, path: Path) -> bool:
        """Walks a node; returns False if `node` has no children and is no Variable or ref (a leaf, or static)."""
        kind = type(node)
        # By exact type, in two look-ups: nearly all nodes are objects or Variables, and asking JAX's registry about a
        # value costs several times as much.
        if kind in GRAPH_TYPES or kind in VARIABLE_TYPES:
            if id(node) in self._numbers:
                return self._again(node, path)
            if kind in VARIABLE_TYPES:
                self._variable(node, path)
                return True
            impl = GRAPH_TYPES[kind]
        else:
            if is_array_ref(node):
                self._ref_node(node, path)
                return True
            impl = get_node_impl(node)
            if impl is None:
                is_hijax = isinstance(node, Variable)
                if is_hijax and not self._again(node, path):
                    self._hijax(node, path)
                return is_hijax
        number = outer = None
        if isinstance(impl, GraphNodeImpl):
            # Numbered before its children are walked, because a cycle leads back to it from below.
            number, outer = self._number(node), self._outer(node)
        self.describe(node, impl, path, number, outer)
        return True

    def describe(self, node: Any, impl: Any, path: Path, number: int | None, outer: int | None) -> None:
        """Writes the definition of an object or container, and walks its children."""
        # Read from the slots directly. The registered `flatten` of objects wraps each value in a marker of data or
        # static.
        if impl is OBJECT:
            items = object_items(node)
            metadata: Any = (type(node), node._pytree__nodes)
        else:
            pairs, metadata = impl.flatten(node)
            items = [(key, *_declared(value)) for key, value in pairs]
        kind = GenericPytree if impl is GENERIC else type(node)
        self.nodes.append(NodeDef(kind, number, outer, len(items), metadata))
        attributes = self.attributes
        for key, value, is_data in items:
            if is_data is False:
                attributes.append((key, self.static(value)))
                continue
            # The mark must stand before those of the attributes below, but whether the value is a leaf or static is
            # known only after asking whether it is a node: so the mark is corrected afterwards.
            place = len(attributes)
            attributes.append((key, NODE_ATTR))
            if self._node(value, (*path, key)):
                continue
            if is_data or is_array_leaf(value):
                attributes[place] = (key, LEAF_ATTR)
                self._leaf(value, (*path, key))
            else:
                attributes[place] = (key, self.static(value))

    def static(self, value: Any) -> Static[Any]:
        """The mark of a static attribute; a plan's walk overrides it, to watch the value."""
        return Static(value)

    def _variable(self, variable: Any, path: Path) -> None:
        number = self._number(variable)
        raw = variable._raw_value
        refdef, value = self._ref(raw) if is_array_ref(raw) else (None, raw)
        self.nodes.append(VariableDef(type(variable), number, self._outer(variable), variable._nnx_metadata, refdef))
        # A ref that an earlier Variable holds has its leaf already: this Variable is rebuilt around the same ref.
        if value is REPEATED:
            return
        # With paths the leaves are the Variables themselves, which states and plans need; without, raw values, which
        # are all that `unflatten` needs in addition to the structure.
        if self.paths is None:
            self._leaf(value, path)
        else:
            # Inside a trace a ref cannot leave, so the leaf is a copy of the Variable around an array.
            self._leaf(variable if value is raw else variable._new(value, variable._nnx_metadata), path)

    def _hijax(self, variable: Any, path: Path) -> None:
        number = self._number(variable)
        # `var_type` and not `type`: a traced hijax Variable is a tracer, and only that attribute names its class.
        self.nodes.append(VariableDef(variable.var_type, number, self._outer(variable), variable._nnx_metadata, None))
        self._leaf(variable, path)

    def _ref_node(self, ref: Any, path: Path) -> None:
        definition, value = self._ref(ref)
        self.nodes.append(definition)
        if value is not REPEATED:
            self._leaf(value, path)

    def _ref(self, ref: Any) -> tuple[ArrayRefDef | NodeRef[Any], Any]:
        numbered = self._numbers.get(id(ref))
        if numbered is not None:
            return NodeRef(numbered[1]), REPEATED
        outer = self._outer(ref)
        # A ref has a number besides that of its Variable, because two Variables may hold the same ref.
        definition = ArrayRefDef(self._number(ref), outer)
        if self.ref_outer_index is None:
            return definition, ref
        # The caller's own ref was written in place, by JAX; a ref created inside a trace leaves as its array.
        return definition, NO_UPDATE if outer is not None else ArrayRefOutput(ref[...])


def _declared(value: Any) -> tuple[Any, bool | None]:
    if isinstance(value, DataElem):
        return value.value, True
    if isinstance(value, StaticElem):
        return value.value, False
    return value, None
