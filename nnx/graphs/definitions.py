"""GraphDef: the structure of a graph without its values, hashable and free of identities.

A graph is flattened in order. Each *node*, that is each object, container, Variable or ref, adds a definition; each
attribute of an object or container says whether it is a node, a leaf (an array), or static. Objects, Variables and
refs are numbered as they are met; meeting one again adds a `NodeRef` with its number, and that is how sharing and
cycles are kept. An *outer index* is the number that the same thing had in an earlier graph (see `contexts`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import jax.tree_util as jtu
from weft.core.paths import Path
from weft.nnx.printing.reprlib import Attr, MappingReprMixin, Object, PrettyMapping, Representable

N = TypeVar("N")
HA = TypeVar("HA")


class IndexMap(dict[int, Any]):
    """From numbers to what has them."""

    @staticmethod
    def from_refmap(refmap: RefMap) -> IndexMap:
        return IndexMap((index, value) for value, index in refmap.items())


class RefMap(MutableMapping[Any, int], MappingReprMixin):
    """From things, by identity, to numbers. It keeps the things alive, so that identities stay their own."""

    __slots__ = ("_mapping",)

    def __init__(self, mapping: Mapping[Any, int] | Iterable[tuple[Any, int]] | None = None, /):
        self._mapping: dict[int, tuple[Any, int]] = {}
        if mapping is not None:
            self.update(mapping)

    @staticmethod
    def from_indexmap(indexmap: IndexMap) -> RefMap:
        found = RefMap()
        found._mapping = {id(value): (value, index) for index, value in indexmap.items()}
        return found

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

    def __contains__(self, key: Any) -> bool:
        return id(key) in self._mapping

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._mapping.values())

    def items(self) -> Any:
        return self._mapping.values()


class _Def(Representable):
    """What the definitions share: they print field by field, and pass through JAX as constants."""

    __slots__ = ()
    _fields: tuple[str, ...]

    def __nnx_repr__(self):
        yield Object(type(self))
        for name in self._fields:
            value = getattr(self, name)
            yield Attr(name, value.__name__ if name == "type" else value)


# Named tuples, since a big model has thousands: they are made, compared and hashed at C speed.
class _NodeRef(NamedTuple):
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  (a tuple's own `index` is not used)


class NodeRef(_Def, _NodeRef, Generic[N]):
    """What was met before, by number."""

    __slots__ = ()


class _ArrayRefDef(NamedTuple):
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  (a tuple's own `index` is not used)
    outer_index: int | None


class ArrayRefDef(_Def, _ArrayRefDef):
    """A JAX ref."""

    __slots__ = ()


class _VariableDef(NamedTuple):
    type: type
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  (a tuple's own `index` is not used)
    outer_index: int | None
    metadata: Any
    array_refdef: ArrayRefDef | NodeRef[Any] | None


class VariableDef(_Def, _VariableDef, Generic[N]):
    """A Variable: its kind and metadata, and the ref that it keeps its value in, if it does."""

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
    """An object or container: its type, number (containers have none), how many attributes follow, and whatever its
    type's registration wants to know to make another."""

    __slots__ = ()


class _TreeNodeDef(NamedTuple):
    type: type
    treedef: Any
    path_index: tuple[tuple[Path, int], ...]


class TreeNodeDef(_Def, _TreeNodeDef, Generic[N]):
    """A whole tree (`graph=False`): JAX's definition of it, and the place of each sorted path among its leaves."""

    __slots__ = ()


def renumbered(definition: Any, outer_index: Any) -> Any:
    """A definition with another outer index: a number, or a function of the definition's own number."""
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
    """A static attribute's value; to JAX, a node without leaves."""

    value: HA

    def __eq__(self, other: object) -> bool:
        # In tuples, so that the same object is equal and is not asked: its `==` may be slow, and a NaN's says no. What
        # `dataclasses` writes asks from Python 3.13 on.
        return (self.value,) == (other.value,) if type(other) is Static else NotImplemented

    def __hash__(self) -> int:
        return hash((self.value,))


@jtu.register_static
@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class MutableStatic(Static[HA]):
    """The value of a static attribute that has no hash, with what it was like when it was met.

    Structures are keys of what was compiled for them, and keep the value itself. Two of them differ if the value has
    been mutated in between, although it is the same object in both.
    """

    seen: Any

    def __eq__(self, other: object) -> bool:
        # In tuples, so that the same object is equal whatever its `==` says (an array's says no truth value).
        if isinstance(other, MutableStatic):
            if (self.seen,) != (other.seen,):
                return False
            # Found equal once, they are the same ever after, and values are not asked again.
            object.__setattr__(other, "seen", self.seen)
            return True
        return (self.value,) == (other.value,) if isinstance(other, Static) else NotImplemented

    def __hash__(self) -> int:
        return hash(type(self.value))


@dataclasses.dataclass(frozen=True, slots=True)
class NodeAttr:
    """The mark of an attribute that is a node."""


@dataclasses.dataclass(frozen=True, slots=True)
class LeafAttr:
    """The mark of an attribute that is a leaf."""


NODE_ATTR, LEAF_ATTR = NodeAttr(), LeafAttr()


@jtu.register_static
class GraphDef(Generic[N]):
    """The structure of a graph.

    Attributes:
        nodes: a definition for each node.
        attributes: (name, mark) for each attribute, in the order in which nodes and leaves are met.
        num_leaves: how many leaves the graph has.

    >>> from weft import nnx
    >>> graphdef, state = nnx.split(nnx.Dict(w=nnx.Param(1.0), n=nnx.BatchStat(2.0)))
    >>> type(graphdef).__name__, graphdef.num_leaves
    ('GraphDef', 2)
    """

    __slots__ = ("_hash", "attributes", "nodes", "num_leaves")

    # `apply(state, *states, graph=None)` is beside `call`, its twin: both put graphs together (see `splitting`).
    apply: ClassVar[Callable[..., Any]]

    def __init__(self, nodes: Iterable[Any], attributes: Iterable[tuple[Any, Any]], num_leaves: int):
        self.nodes = tuple(nodes)
        self.attributes = tuple(attributes)
        self.num_leaves = num_leaves
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

    def __reduce__(self) -> Any:
        return (GraphDef, (self.nodes, self.attributes, self.num_leaves))

    def _renumbered(self, outer_index: Any) -> GraphDef[N]:
        return GraphDef([renumbered(node, outer_index) for node in self.nodes], self.attributes, self.num_leaves)

    def with_no_outer_index(self) -> GraphDef[N]:
        """This definition, as of a graph without an earlier one."""
        return self._renumbered(None)

    def with_same_outer_index(self) -> GraphDef[N]:
        """This definition, as of a graph whose earlier one was equal."""
        return self._renumbered(lambda index: index)

    def with_matching_outer_index(self, other: GraphDef[Any]) -> GraphDef[N]:
        """This definition with the outer indexes of another."""
        nodes = [
            node if isinstance(node, NodeRef) else renumbered(node, getattr(match, "outer_index", None))
            for node, match in zip(self.nodes, other.nodes, strict=True)
        ]
        return GraphDef(nodes, self.attributes, self.num_leaves)


for _definition in (NodeRef, ArrayRefDef, VariableDef, NodeDef, TreeNodeDef):
    jtu.register_static(_definition)
