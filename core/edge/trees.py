"""JAX's tree functions, typed.

JAX's treedefs come from a compiled module without stubs, so that a strict checker sees `Unknown` wherever a treedef
passes. The names here are JAX's own functions with the types that their documentation gives them; only
`flatten_one_level` does something else than JAX's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, TypeVar, cast

import jax.tree_util
from weft.core.edge.moved import Names

if TYPE_CHECKING:
    # A tree of containers, records and leaves. jaxtyping's `PyTree` is the same at run time, but strict checkers reject
    # it.
    PyTree = Any
else:
    from jaxtyping import PyTree as PyTree

_jtu = cast(Any, jax.tree_util)
N = TypeVar("N")

KeyPath = tuple[Any, ...]


class TreeDef(Protocol):
    """The methods of a `jax.tree_util.PyTreeDef`, which is hashable, and equal for trees of equal structure."""

    @property
    def num_leaves(self) -> int: ...

    @property
    def num_nodes(self) -> int: ...

    def unflatten(self, leaves: Iterable[PyTree], /) -> PyTree: ...

    def flatten_up_to(self, tree: PyTree, /) -> list[PyTree]: ...

    def node_data(self) -> tuple[type[Any], Any] | None: ...

    def children(self) -> list[TreeDef]: ...


if TYPE_CHECKING:

    def flatten(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None, /) -> tuple[list[PyTree], TreeDef]: ...
    def structure(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None, /) -> TreeDef: ...
    def register_node(
        node_type: type[N], flatten: Callable[[N], tuple[Iterable[Any], Any]], unflatten: Callable[[Any, Any], N], /
    ) -> None: ...
    def register_node_with_keys(
        node_type: type[N],
        flatten_with_keys: Callable[[N], tuple[Iterable[tuple[Any, Any]], Any]],
        unflatten: Callable[[Any, Any], N],
        flatten: Callable[[N], tuple[Iterable[Any], Any]],
        /,
    ) -> None: ...

else:
    flatten, structure = _jtu.tree_flatten, _jtu.tree_structure
    register_node, register_node_with_keys = _jtu.register_pytree_node, _jtu.register_pytree_with_keys

flatten_with_path: Callable[[Any], tuple[list[tuple[KeyPath, Any]], TreeDef]] = _jtu.tree_flatten_with_path
_registry: Any = Names("jax.tree_util", "weft", "default_registry").default_registry
# One level only: the children and the node's own data, or None for a leaf.
children_of: Callable[[Any], tuple[Iterable[Any], Any] | None] = _registry.flatten_one_level
_flatten_one_level: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any] | None] = (
    _registry.flatten_one_level_with_keys
)


def flatten_one_level(node: Any) -> tuple[Iterable[tuple[Any, Any]], Any] | None:
    """The children of a node, each with its key, and the node's own data; `None` for a leaf."""
    level = _flatten_one_level(node)
    if level is None or not isinstance(node, tuple) or not hasattr(cast(Any, node), "_fields"):
        return level
    # floor: JAX 0.10 gives every child of a namedtuple the key of the first.
    names: tuple[str, ...] = cast(Any, node)._fields
    attribute = _jtu.GetAttrKey
    return [(attribute(name), child) for name, (_, child) in zip(names, level[0], strict=True)], level[1]


def key_part(key: Any) -> Hashable:
    """The path part of one JAX key entry (`GetAttrKey`, `SequenceKey`, `DictKey`, `FlattenedIndexKey`)."""
    match key:
        case _jtu.GetAttrKey():
            return key.name
        case _jtu.SequenceKey():
            return key.idx
        case _jtu.DictKey() | _jtu.FlattenedIndexKey():
            return key.key
        case _:
            return str(key)


def children_by_part(node: Any) -> list[tuple[Hashable, Any]]:
    """The children of a node, each with its part of a path; none for a leaf.

    >>> children_by_part({"b": 1, "a": 2}), children_by_part(3)
    ([('a', 2), ('b', 1)], [])
    """
    level = flatten_one_level(node)
    return [] if level is None else [(key_part(key), child) for key, child in level[0]]


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    """`isinstance(value, tuple)`, after which the elements are `Any` rather than unknown."""
    return isinstance(value, tuple)
