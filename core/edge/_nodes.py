"""The edge to JAX's registries of pytree nodes: nodes for compiled calls alone.

As in `_jax.py`, each use of what JAX keeps to itself says why.
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

# How `jit` takes calls apart that it has compiled before; JAX registers its own keys there, apart from everywhere else.
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
    """`jax.tree_util.register_pytree_with_keys` with another pair of functions for calls that `jit` has compiled.

    Such a call asks only for the leaves in order, for something to compare, and for its output made of the leaves that
    come back. So `pack` may give the leaves of a whole tree at once, where `flatten` gives a level.
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
    """Whether this JAX takes calls that are compiled apart by a registry of its own; without it they are slower."""
    return not _trees.missing()
