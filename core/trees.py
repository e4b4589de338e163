"""JAX's tree functions, typed.

JAX's tree definitions come from a compiled module without stubs, so that a strict checker sees `Unknown` wherever one
passes. The names here are JAX's own functions, unchanged, under the types that their documentation gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar, cast

import jax.tree_util

N = TypeVar("N")

KeyPath = tuple[Any, ...]


class TreeDef(Protocol):
    """What a `jax.tree_util.PyTreeDef` offers. It is hashable, and equal for trees of equal make."""

    @property
    def num_leaves(self) -> int: ...

    def unflatten(self, leaves: Iterable[Any], /) -> Any: ...

    def flatten_up_to(self, tree: Any, /) -> list[Any]: ...


class _Structure(Protocol):
    def __call__(self, tree: Any, is_leaf: Callable[[Any], bool] | None = None, /) -> TreeDef: ...


class _RegisterNode(Protocol):
    def __call__(
        self,
        node_type: type[N],
        flatten: Callable[[N], tuple[Iterable[Any], Any]],
        unflatten: Callable[[Any, Any], N],
        /,
    ) -> None: ...


_jtu = cast(Any, jax.tree_util)

flatten: Callable[[Any], tuple[list[Any], TreeDef]] = _jtu.tree_flatten
flatten_with_path: Callable[[Any], tuple[list[tuple[KeyPath, Any]], TreeDef]] = _jtu.tree_flatten_with_path
structure: _Structure = _jtu.tree_structure
register_node: _RegisterNode = _jtu.register_pytree_node
# One level only: the children and the node's own data, or None for a leaf; and the same with the children's keys.
children_of: Callable[[Any], tuple[Iterable[Any], Any] | None] = _jtu.default_registry.flatten_one_level
flatten_one_level: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any] | None] = (
    _jtu.default_registry.flatten_one_level_with_keys
)
