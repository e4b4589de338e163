"""GraphDef: the structure of a graph without its values, hashable and free of identities.

A graph is flattened depth first. Each *node* (an object, a container, a Variable or an array ref) adds a definition;
each attribute of an object or container has a mark that says whether it is a node, a leaf (an array), or static.
Objects, Variables and refs are numbered in the order of the walk. A second path to one of them adds a `NodeRef` with
its number, and so a structure has sharing and cycles. An *outer index* is the number that the same object had in an
earlier graph (see `contexts`).

A `GraphState` is a State together with the structure of its graph, so that `merge` needs nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import jax.tree_util as jtu
from weft.core.paths import Path
from weft.nnx.errors import StructureError
from weft.nnx.printing.reprlib import Attr, MappingReprMixin, Object, PrettyMapping, Representable
from weft.nnx.states.states import State, flatten_state, flatten_state_with_keys, unflatten_state

N = TypeVar("N")
HA = TypeVar("HA")


class IndexMap(dict[int, Any]):
    """A dict from number to object, Variable or ref."""

    @staticmethod
    def from_refmap(refmap: RefMap) -> IndexMap:
        return IndexMap((index, value) for value, index in refmap.items())


class RefMap(MutableMapping[Any, int], MappingReprMixin):
    """A mapping from objects, by identity, to numbers. It keeps its keys alive: `id`s of dead objects are reused."""

    __slots__ = ("_mapping",)

    def __init__(self, mapping: Mapping[Any, int] | Iterable[tuple[Any, int]] | None = None, /):
        self._mapping: dict[int, tuple[Any, int]] = {}
        if mapping is not None:
            self.update(mapping)

    @staticmethod
    def from_indexmap(indexmap: IndexMap) -> RefMap:
        refmap = RefMap()
        refmap._mapping = {id(value): (value, index) for index, value in indexmap.items()}
        return refmap

    def get(self, key: Any, default: Any = None) -> Any:
        return self._mapping.get(id(key), (None, default))[1]

    def __getitem__(self, key: Any) -> int:
        return self._mapping[id(key)][1]

    def __setitem__(self, key: Any, value: int) -> None:
        self._mapping[id(key)] = (key, value)

    def __delitem__(self, key: Any) -> None:
        del self._mapping[id(key)]

    def __len__(self) -> int:
        return len(self._mapping)

    # By identity, as everything here: `==` of Variables returns arrays, which have no truth value.
    def __contains__(self, key: Any) -> bool:
        return id(key) in self._mapping

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._mapping.values())

    def items(self) -> Any:
        return self._mapping.values()


class _Def(Representable):
    """Base class of definitions: prints them field by field; JAX treats them as constants."""

    __slots__ = ()
    _fields: tuple[str, ...]

    def __nnx_repr__(self):
        yield Object(type(self))
        for name in self._fields:
            value = getattr(self, name)
            yield Attr(name, value.__name__ if name == "type" else value)


# Named tuples, because a big model has thousands of definitions: Python creates, compares and hashes tuples in C.
class _NodeRef(NamedTuple):
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  (a tuple's own `index` is not used)


class NodeRef(_Def, _NodeRef, Generic[N]):
    """A further path to a node that was described before, which it names by number."""

    __slots__ = ()


class _ArrayRefDef(NamedTuple):
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  (a tuple's own `index` is not used)
    outer_index: int | None


class ArrayRefDef(_Def, _ArrayRefDef):
    """An array ref of JAX (`jax.new_ref`)."""

    __slots__ = ()


class _VariableDef(NamedTuple):
    type: type
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  (a tuple's own `index` is not used)
    outer_index: int | None
    metadata: Any
    array_refdef: ArrayRefDef | NodeRef[Any] | None


class VariableDef(_Def, _VariableDef, Generic[N]):
    """A Variable: its type and metadata, and the definition of the array ref in it, if its value is one."""

    __slots__ = ()

    def __nnx_repr__(self):
        yield Object(type(self))
        for name, value in zip(self._fields[:3], (self.type.__name__, self.index, self.outer_index), strict=True):
            yield Attr(name, value)
        yield Attr("metadata", PrettyMapping(self.metadata))


class _NodeDef(NamedTuple):
    type: type
    index: int | None  # pyright: ignore[reportIncompatibleMethodOverride]  (a tuple's own `index` is not used)
    outer_index: int | None
    num_attributes: int
    metadata: Any


class NodeDef(_Def, _NodeDef, Generic[N]):
    """An object or container: its type, its number (None for a container), how many attributes follow, and the metadata
    with which the registered functions of its type rebuild it."""

    __slots__ = ()


class _TreeNodeDef(NamedTuple):
    type: type
    treedef: Any
    path_index: tuple[tuple[Path, int], ...]


class TreeNodeDef(_Def, _TreeNodeDef, Generic[N]):
    """A whole tree (`graph=False`): its treedef, and for each path, sorted, its position among JAX's leaves."""

    __slots__ = ()


# A transform describes the arguments with outer indexes at its end; comparing that with the structure at its start
# needs both without, or both with, equal indexes.
def renumbered(definition: Any, outer_index: Any) -> Any:
    """A copy of `definition` with `outer_index`, which is a number or a function of the definition's own number."""
    if isinstance(definition, NodeRef | TreeNodeDef) or definition is None:
        return definition
    index = outer_index(definition.index) if callable(outer_index) else outer_index
    changes: dict[str, Any] = {"outer_index": index}
    if isinstance(definition, VariableDef) and definition.array_refdef is not None:
        changes["array_refdef"] = renumbered(definition.array_refdef, outer_index)
    return definition._replace(**changes)


@jtu.register_static
@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Static(Generic[HA]):
    """The mark of a static attribute, with its value; for JAX, a pytree node without leaves."""

    value: HA

    def __eq__(self, other: object) -> bool:
        # Compared as tuples, which find the same object equal without calling its `==`: that may be slow, and `nan`
        # would differ from itself and retrace at each call. From Python 3.13 on, `dataclasses` generates an `__eq__`
        # that does call it.
        return (self.value,) == (other.value,) if type(other) is Static else NotImplemented

    def __hash__(self) -> int:
        return hash((self.value,))


@jtu.register_static
@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class MutableStatic(Static[HA]):
    """The mark of a static attribute whose value is unhashable (a dict of options), with a snapshot of that value.

    Structures are cache keys and keep a reference to the value. If the user mutates it between two calls, it is the
    same object in both structures, and only the snapshots tell that they differ.
    """

    seen: Any

    def __eq__(self, other: object) -> bool:
        # Compared as tuples, which find the same object equal without its `==`: that of an array has no truth value.
        if isinstance(other, MutableStatic):
            if (self.seen,) != (other.seen,):
                return False
            # From now on both have one snapshot, so the next comparison is one of identity.
            object.__setattr__(other, "seen", self.seen)
            return True
        return (self.value,) == (other.value,) if isinstance(other, Static) else NotImplemented

    def __hash__(self) -> int:
        # By type: the value has no hash, and a hash of its snapshot would change when the user mutates it.
        return hash(type(self.value))


@dataclasses.dataclass(frozen=True, slots=True)
class NodeAttr:
    """The mark of an attribute that is a node: the next definition describes it."""


@dataclasses.dataclass(frozen=True, slots=True)
class LeafAttr:
    """The mark of an attribute that is a leaf (an array): the next leaf is its value."""


NODE_ATTR, LEAF_ATTR = NodeAttr(), LeafAttr()


@jtu.register_static
class GraphDef(Generic[N]):
    """The structure of a graph.

    Attributes:
        nodes: a definition for each node, depth first.
        attributes: (name, mark) for each attribute of each node, depth first.
        num_leaves: how many leaves the graph has.

    >>> from weft import nnx
    >>> graphdef, state = nnx.split(nnx.Dict(w=nnx.Param(1.0), n=nnx.BatchStat(2.0)))
    >>> type(graphdef).__name__, graphdef.num_leaves
    ('GraphDef', 2)
    """

    __slots__ = ("_hash", "attributes", "nodes", "num_leaves")

    # `apply(state, *states, graph=None)` is defined in `splitting`: it merges, and this file knows no graphs.
    apply: ClassVar[Callable[..., Any]]

    def __init__(self, nodes: Iterable[Any], attributes: Iterable[tuple[Any, Any]], num_leaves: int):
        self.nodes = tuple(nodes)
        self.attributes = tuple(attributes)
        self.num_leaves = num_leaves
        # Computed at the first use and remembered: a structure is a part of jit's cache key at each call.
        self._hash: int | None = None

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, GraphDef)
            and self.num_leaves == other.num_leaves
            and self.nodes == other.nodes
            and self.attributes == other.attributes
        )

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.nodes, self.attributes))
        return self._hash

    def __repr__(self) -> str:
        return (
            f"GraphDef(nodes={list(self.nodes)!r}, attributes={list(self.attributes)!r}, num_leaves={self.num_leaves})"
        )

    # Without the cached hash: hashes of strings differ between processes.
    def __reduce__(self) -> Any:
        return (GraphDef, (self.nodes, self.attributes, self.num_leaves))

    def _renumbered(self, outer_index: Any) -> GraphDef[N]:
        return GraphDef([renumbered(node, outer_index) for node in self.nodes], self.attributes, self.num_leaves)

    def with_no_outer_index(self) -> GraphDef[N]:
        """This structure without outer indexes."""
        return self._renumbered(None)

    def with_same_outer_index(self) -> GraphDef[N]:
        """This structure with each node's own number as its outer index: nothing has moved since the earlier graph."""
        return self._renumbered(lambda index: index)

    def with_matching_outer_index(self, other: GraphDef[Any]) -> GraphDef[N]:
        """This structure with the outer indexes of `other`, node by node."""
        nodes = [
            node if isinstance(node, NodeRef) else renumbered(node, getattr(match, "outer_index", None))
            for node, match in zip(self.nodes, other.nodes, strict=True)
        ]
        return GraphDef(nodes, self.attributes, self.num_leaves)


for _definition in (NodeRef, ArrayRefDef, VariableDef, NodeDef, TreeNodeDef):
    jtu.register_static(_definition)


A = TypeVar("A")


class GraphState(MutableMapping[Any, Any], Representable, Generic[A]):
    """A `State` with the structure of its graph; `unpack` returns it, and `merge` takes it alone.

    Raises:
        ValueError: if `_state` is no `State`.

    >>> from weft import nnx
    >>> state = nnx.unpack(nnx.Dict(w=nnx.Param(1.0)))
    >>> type(state).__name__, list(state), nnx.merge(state).w.get_value()
    ('GraphState', ['w'], 1.0)
    """

    __slots__ = ("_graphdef", "_state")

    def __init__(self, _graphdef: GraphDef[A], _state: State):
        if not isinstance(_state, State):
            raise StructureError(f"expected a State, got {type(_state).__name__}")
        object.__setattr__(self, "_graphdef", _graphdef)
        object.__setattr__(self, "_state", _state)

    _graphdef: GraphDef[A]
    _state: State

    # Attributes are the State's items, so programs that use `state.layer.kernel` work with either.
    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in GraphState.__slots__:
            object.__setattr__(self, name, value)
        else:
            setattr(self._state, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._state[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._state[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._state[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def __contains__(self, key: object) -> bool:
        return key in self._state

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, GraphState)
            and self._graphdef == other._graphdef
            and dict(self._state) == dict(other._state)
        )

    # Mutable: as a key of a dict it could not be found again after a write.
    __hash__ = None

    def __reduce__(self) -> Any:
        return (GraphState, (self._graphdef, self._state))

    def __nnx_repr__(self):
        yield Object(type(self))
        yield Attr("_graphdef", self._graphdef)
        yield Attr("_state", self._state)


def _flatten(state: GraphState[Any]) -> tuple[Any, Any]:
    values, keys = flatten_state(state._state)
    return values, (state._graphdef, keys)


def _flatten_with_keys(state: GraphState[Any]) -> tuple[Any, Any]:
    values, keys = flatten_state_with_keys(state._state)
    return values, (state._graphdef, keys)


jtu.register_pytree_with_keys(
    GraphState,
    _flatten_with_keys,
    lambda aux, values: GraphState(aux[0], unflatten_state(State, aux[1], values)),
    _flatten,
)
