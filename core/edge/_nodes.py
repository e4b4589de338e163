"""The edge to JAX's registries of pytree nodes: another flattening of a node for calls that `jit` has compiled.

As in `_jax.py`, each use of a private name says why.
"""

# JAX annotates in part; see `_jax.py`.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
from weft.core.edge.moved import Names
from weft.core.edge.trees import PyTree

# The registry by which `jit` flattens calls that it has compiled before. JAX itself registers its key arrays
# differently there than in its other registries.
_trees = Names(
    "jax._src.tree_util", "the speed of plain `jax.jit` over NNX objects",
    "_all_registries", "dispatch_registry", "_registry", "_RegistryEntry",
)  # fmt: skip
N = TypeVar("N")


def register_dispatched_node(
    cls: type,
    flatten: Callable[[N], tuple[Iterable[PyTree], object]],
    unflatten: Callable[[Any, Any], N],
    flatten_with_keys: Callable[[N], tuple[Iterable[tuple[object, PyTree]], object]],
    pack: Callable[[N], tuple[Iterable[PyTree], object]],
    unpack: Callable[[Any, Any], N],
) -> None:
    """`jax.tree_util.register_pytree_with_keys`, with `pack` and `unpack` for calls that `jit` has compiled.

    Such a call needs only the leaves in order, auxiliary data to compare, and an output that is built from the leaves
    that come back. So `pack` may return the leaves of a whole graph at once, where `flatten` returns one level.
    """
    if not has_dispatch_registry():
        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
        return
    for registry in _trees._all_registries:
        if registry is _trees.dispatch_registry:
            registry.register_node(cls, pack, unpack)
        else:
            registry.register_node(cls, flatten, unflatten, flatten_with_keys)
    _trees._registry[cls] = _trees._RegistryEntry(flatten, unflatten)


def has_dispatch_registry() -> bool:
    """Whether this JAX flattens compiled calls by a registry of its own; without it such calls are slower."""
    return not _trees.missing()
