"""The edge to JAX's registries of pytree nodes: definitions made by hand, what exports write, and compiled calls.

As in `_jax.py`, each use of what JAX keeps to itself says why.
"""

# JAX annotates in part; see `_jax.py`.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import jax
from weft.core.edge.moved import Names
from weft.core.edge.trees import PyTree, TreeDef

# How `jit` takes calls apart that it has compiled before; JAX registers its own keys there, apart from everywhere else.
_trees = Names(
    "jax._src.tree_util", "the speed of plain `jax.jit` over NNX objects",
    "_all_registries", "dispatch_registry", "_registry", "_RegistryEntry",
)  # fmt: skip
# What nodes of trees it writes, and how; JAX exports only how to add some.
_EXPORT = "`jax.export` of functions over records"
_export = Names("jax.export", _EXPORT, "register_pytree_node_serialization")
_exported = Names("jax._src.export._export", _EXPORT, "serialization_registry")
_writer = Names("jax._src.export.serialization", _EXPORT, "_serialize_pytreedef", optional=True)

N = TypeVar("N")


def node_of(cls: type, data: object, children: Sequence[PyTree]) -> PyTree:
    """A node of a pytree class, from its own data and its children; JAX offers it for a whole definition alone."""
    definition = definition_of(cls, data, [jax.tree.structure(child) for child in children])
    return definition.unflatten([leaf for child in children for leaf in jax.tree.leaves(child)])


def definition_of(cls: type, data: object, children: Sequence[TreeDef]) -> TreeDef:
    """The definition of a node, from its own data and the definitions of its children."""
    definition = jax.tree_util.PyTreeDef.from_node_data_and_children
    return definition(jax.tree_util.default_registry, (cls, data), cast(Any, children))


def is_exported(cls: type, data: object) -> bool:
    """Whether `jax.export` writes a node of this class, with this data of its own."""
    if cls is dict:
        return all(isinstance(key, str) for key in cast("list[object]", data))
    return cls in (tuple, list, type(None)) or cls in _exported.serialization_registry


def write_instead(other: Callable[[TreeDef], TreeDef]) -> None:
    """Has `jax.export` write another definition in the place of each that it comes to.

    It asks for the names and data of nodes that are registered, which nobody can do for dicts, and refuses the rest.
    """
    if not _writer.has("_serialize_pytreedef"):  # without flatbuffers, no requirement of JAX's, nothing is written
        return

    def writing(write: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(write)
        def instead(builder: Any, definition: Any) -> Any:
            return write(builder, other(definition))

        return instead

    # It calls itself by this name for the children.
    _writer.wrap("_serialize_pytreedef", writing)


def register_exported_node(cls: type, **options: Any) -> None:
    """`jax.export.register_pytree_node_serialization`; where it is gone, `jax.export` refuses these nodes by itself."""
    if _export.has("register_pytree_node_serialization"):
        _export.register_pytree_node_serialization(cls, **options)


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
