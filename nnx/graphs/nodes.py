"""Nodes: which values have children in a graph, and the functions that flatten and rebuild each type.

There are three sorts of nodes. *Objects* (and types registered by `register_graph_node_type`) have an identity: they
can be shared, be part of cycles, and be mutated in place. *Containers* are pytrees without an identity: lists, tuples,
dicts, States, types registered by `register_pytree_node_type`, and every other pytree that JAX knows. *Variables* and
array refs hold a value instead of children.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, cast

import jax
import jax.tree_util as jtu
import numpy as np
from weft.core.caches import kept_in
from weft.core.edge.trees import key_part
from weft.core.paths import Path
from weft.core.records.leaves import refuse_unsorted
from weft.nnx.errors import StructureError
from weft.nnx.foreign import refuse_foreign
from weft.nnx.objects.attributes import GRAPH_TYPES, HashableMapping
from weft.nnx.objects.objects import (
    OBJECT,
    DataElem,
    GraphNodeImpl,
    Items,
    NodeImpl,
    PytreeNodeImpl,
    StaticElem,
    object_items,
)
from weft.nnx.variable.refs import ArrayRefOutput, NoUpdate, is_array_ref
from weft.nnx.variable.variable import VARIABLE_TYPES, Variable

# ---------------------------------------------------------------------- containers


class GenericPytree:
    """The type in the definition of any container that JAX's registry knows and NNX's does not."""


def one_level() -> Callable[[Any], bool]:
    """Makes an `is_leaf` with which JAX flattens the root alone. By counting, since a root may be its own child."""
    asked = itertools.count()
    return lambda _: next(asked) > 0


def _flatten_pytree(tree: Any) -> tuple[Items, Any]:
    with_keys, treedef = jtu.tree_flatten_with_path(tree, is_leaf=one_level())
    keys = [key_part(path[0]) for path, _ in with_keys]
    # Sorted by key, as everywhere in NNX: JAX flattens a dataclass in the order of its fields.
    order: list[int] = sorted(range(len(keys)), key=lambda i: cast(Any, keys[i]))
    place = HashableMapping({keys[i]: i for i in range(len(keys))}, copy=False)
    return [(keys[i], with_keys[i][1]) for i in order], (place, treedef)


def _unflatten_pytree(items: Items, metadata: Any) -> Any:
    place, treedef = metadata
    return treedef.unflatten(value for _, value in sorted(items, key=lambda item: place[item[0]]))


GENERIC = PytreeNodeImpl(_flatten_pytree, _unflatten_pytree)
CONTAINER_TYPES: dict[type, PytreeNodeImpl] = {}
# JAX can only tell whether it knows a type by flattening a value, which is slow for every leaf of a model.
_known_to_jax: dict[type, bool] = {}
kept_in("weft.nnx.graphs.nodes", "type", _known_to_jax)


def _is_tuple(value: Any) -> bool:
    """Whether JAX flattens a value as a tuple: tuples and named tuples; any other subclass of tuple is a leaf."""
    return isinstance(value, tuple) and (type(value) is tuple or hasattr(value, "_fields"))


def _is_jax_pytree(value: Any) -> bool:
    kind = type(value)
    known = _known_to_jax.get(kind)
    if known is None:
        if kind in VARIABLE_TYPES or kind in GRAPH_TYPES:
            return True
        refuse_foreign(value)
        # A user may register a class after its first value was seen, so a "no" is remembered for builtins and arrays
        # only.
        known = value is None or jtu.default_registry.flatten_one_level(value) is not None
        if known or kind.__module__ == "builtins" or isinstance(value, jax.Array | np.ndarray):
            _known_to_jax[kind] = known
    return known


def register_graph_node_type(
    type: type,
    flatten: Callable[[Any], tuple[Any, Any]],
    set_key: Callable[[Any, Any, Any], None],
    pop_key: Callable[[Any, Any], Any],
    create_empty: Callable[[Any], Any],
    clear: Callable[[Any], None],
    init: Callable[[Any, Iterable[tuple[Any, Any]]], None],
) -> None:
    """Registers a type whose values are nodes with an identity, like NNX's own objects.

    Args:
        type: the type.
        flatten: returns an object's children as sorted (key, value) pairs, and hashable metadata for `create_empty`.
        set_key, pop_key: set a child; remove a child and return it.
        create_empty: makes an object without children from the metadata of `flatten`.
        clear: removes all children.
        init: fills an empty object with (key, value) pairs.

    Raises:
        ValueError: if the type is registered already.
    """
    if type in GRAPH_TYPES:
        raise StructureError(f"the node type {type.__name__} is registered already")
    GRAPH_TYPES[type] = GraphNodeImpl(flatten, set_key, pop_key, create_empty, clear, init)


def register_pytree_node_type(
    type: type,
    flatten: Callable[[Any], tuple[Any, Any]],
    unflatten: Callable[[Any, Any], Any],
    *,
    set_key: Callable[[Any, Any, Any], None] | None = None,
    pop_key: Callable[[Any, Any], Any] | None = None,
) -> None:
    """Registers a type whose values are containers, without an identity. See `register_graph_node_type`.

    Raises:
        ValueError: if the type is registered already.
    """
    if type in CONTAINER_TYPES:
        raise StructureError(f"the node type {type.__name__} is registered already")
    CONTAINER_TYPES[type] = PytreeNodeImpl(flatten, unflatten, set_key, pop_key)


def _set_item(container: Any, key: Any, value: Any) -> None:
    container[key] = value


def _items_of_dict(xs: dict[Any, Any]) -> tuple[list[tuple[Any, Any]], None]:
    refuse_unsorted(xs)
    return sorted(xs.items()), None


register_pytree_node_type(
    list, lambda xs: (list(enumerate(xs)), None), lambda items, _: [x for _, x in items], set_key=_set_item
)
register_pytree_node_type(tuple, lambda xs: (list(enumerate(xs)), None), lambda items, _: tuple([x for _, x in items]))
register_pytree_node_type(
    dict,
    _items_of_dict,
    lambda items, _: dict(items),
    set_key=_set_item,
    pop_key=lambda xs, key: xs.pop(key),
)
# As for JAX, None is a container without children, so it is a part of the structure.
register_pytree_node_type(type(None), lambda _: ([], None), lambda _items, _: None)

# ---------------------------------------------------------------------- questions


def get_node_impl(value: Any) -> NodeImpl | None:
    """The functions that flatten and rebuild a value with children; None for leaves, Variables and refs."""
    kind = type(value)
    impl = GRAPH_TYPES.get(kind) or CONTAINER_TYPES.get(kind)
    if impl is not None or kind in VARIABLE_TYPES:
        return impl
    return GENERIC if _is_tuple(value) or (not isinstance(value, Variable) and _is_jax_pytree(value)) else None


def impl_of_type(kind: type) -> NodeImpl | None:
    """Like `get_node_impl`, for the type that a definition names."""
    return GENERIC if kind is GenericPytree else GRAPH_TYPES.get(kind) or CONTAINER_TYPES.get(kind)


def is_node_type(kind: type) -> bool:
    """Whether a type is registered with NNX as an object or a container.

    >>> is_node_type(dict), is_node_type(int)
    (True, False)
    """
    return impl_of_type(kind) is not None


def jax_to_nnx_path(path: tuple[Any, ...], /) -> Path:
    """Converts a JAX key path to a path of plain strings and ints.

    >>> jax_to_nnx_path((jtu.DictKey("layers"), jtu.SequenceKey(0), jtu.GetAttrKey("kernel")))
    ('layers', 0, 'kernel')
    """
    return tuple(map(key_part, path))


def is_pytree_node(value: Any, *, check_graph_registry: bool = True) -> bool:
    """Whether a value is a container; with `check_graph_registry=False`, also whether it is an object and a pytree."""
    if check_graph_registry and type(value) in GRAPH_TYPES:
        return False
    # An object whose class has `pytree=False` is a node of graphs, but a leaf to JAX.
    if type(value) in GRAPH_TYPES and hasattr(value, "_pytree__is_pytree"):
        return value._pytree__is_pytree
    return not isinstance(value, Variable) and (_is_tuple(value) or _is_jax_pytree(value))


def is_node(value: Any) -> bool:
    """Whether a value has children: an object or a container."""
    return not isinstance(value, Variable) and (type(value) in GRAPH_TYPES or is_pytree_node(value))


def is_node_module(value: Any) -> bool:
    """Whether a value is an object."""
    return type(value) in GRAPH_TYPES


def is_graph_node(value: Any) -> bool:
    """Whether a value has an identity: an object, a Variable or a ref."""
    kind = type(value)
    return kind in GRAPH_TYPES or kind in VARIABLE_TYPES or is_array_ref(value) or isinstance(value, Variable)


def is_node_leaf(value: Any) -> bool:
    """Whether a value is a leaf of states: a Variable, an array or a ref."""
    return type(value) in VARIABLE_TYPES or isinstance(
        value, jax.Array | np.ndarray | jax.Ref | Variable | ArrayRefOutput | NoUpdate
    )


def child_items(node: Any) -> Items:
    """The children of a node as (key, value), static attributes among them."""
    impl = get_node_impl(node)
    if impl is OBJECT:
        return [(key, value) for key, value, _ in object_items(node)]
    if impl is None:
        raise TypeError(f"a {type(node).__name__} has no children: expected an object or a container")
    return [
        (key, value.value if isinstance(value, DataElem | StaticElem) else value)
        for key, value in impl.flatten(node)[0]
    ]
