"""JAX's tree functions, typed.

JAX's tree definitions come from a compiled module without stubs, so that a strict checker sees `Unknown` wherever one
passes. The names here are JAX's own functions, unchanged, under the types that their documentation gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

import jax.tree_util

KeyPath = tuple[Any, ...]


class TreeDef(Protocol):
    """What a `jax.tree_util.PyTreeDef` offers. It is hashable, and equal for trees of equal make."""

    @property
    def num_leaves(self) -> int: ...

    def unflatten(self, leaves: Iterable[Any], /) -> Any: ...

    def flatten_up_to(self, tree: Any, /) -> list[Any]: ...


_jtu = cast(Any, jax.tree_util)

flatten: Callable[[Any], tuple[list[Any], TreeDef]] = _jtu.tree_flatten
flatten_with_path: Callable[[Any], tuple[list[tuple[KeyPath, Any]], TreeDef]] = _jtu.tree_flatten_with_path
structure: Callable[[Any], TreeDef] = _jtu.tree_structure
# One level only: the children with their keys and the node's own data, or None for a leaf.
flatten_one_level: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any] | None] = (
    _jtu.default_registry.flatten_one_level_with_keys
)
