"""Walks over graphs: iterate over the nodes, map them, and find shared nodes.

Each walk has two forms. On graphs, a node with an identity is visited once, however many paths lead to it; on trees
(`graph=False`), sharing and cycles are errors that name both paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.tree_util as jtu
from weft.core.edge.trees import key_part
from weft.core.paths import Path, format_path
from weft.nnx.config import graph_mode
from weft.nnx.errors import AliasError, StructureError
from weft.nnx.graphs.nodes import (
    child_items,
    get_node_impl,
    is_graph_node,
    is_node,
    is_node_leaf,
    is_node_module,
    is_pytree_node,
    one_level,
)
from weft.nnx.graphs.splitting import clone
from weft.nnx.graphs.trees import SharingCheck, check_is_pytree, cycle
from weft.nnx.objects.attributes import GRAPH_TYPES
from weft.nnx.objects.objects import GraphNodeImpl
from weft.nnx.states.filters import Filter, to_predicate
from weft.nnx.variable.refs import is_array_ref
from weft.nnx.variable.variable import Variable

Items = list[tuple[Any, Any]]


def _with_bookkeeping(node: Any, items: Items) -> Items:
    """An object's children with its bookkeeping, which flax's walks yield as two more attributes, in sorted order."""
    if not hasattr(type(node), "_pytree__is_pytree"):
        return items
    own = [("_pytree__nodes", node._pytree__nodes), ("_pytree__state", node._pytree__state)]
    place = next((i for i, (key, _) in enumerate(items) if isinstance(key, str) and key > "_pytree__"), len(items))
    return [*items[:place], *own, *items[place:]]


def tree_children(node: Any) -> tuple[Items, Any]:
    """A pytree node's children as (key, value), and the treedef of this one level."""
    pairs, treedef = jtu.tree_flatten_with_path(node, is_leaf=one_level())
    return [(key_part(path[0]), value) for path, value in pairs], treedef


def iter_graph(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Path, Any]]:
    """Iterates over all nodes and leaves of a graph, static values among them: children first, the root last.

    Args:
        node: the graph.
        graph: whether a shared node is visited once (True), or is an error (False).

    Yields:
        (path, value)

    Raises:
        ValueError: in tree mode, for a shared node.

    >>> from weft import nnx
    >>> model = nnx.Dict(w=nnx.Param(1.0), inner=nnx.Dict(n=nnx.Param(2.0)))
    >>> [path for path, value in nnx.iter_graph(model) if isinstance(value, nnx.Variable)]
    [('inner', 'n'), ('w',)]
    """
    if graph_mode(graph):
        yield from _iter_graph(node)
    else:
        yield from _iter_tree(node, (), {}, SharingCheck("iter_graph"))


# flax has a function of this name, which programs import.
def _iter_graph(root: Any) -> Iterator[tuple[Path, Any]]:
    # A stack of its own: a model with 1,000 layers in a chain is deeper than Python's recursion limit.
    seen: set[int] = set()
    stack: list[tuple[Path, Any, bool]] = [((), root, False)]
    while stack:
        path, node, done = stack.pop()
        if done or not (is_node(node) or isinstance(node, Variable)):
            yield path, node
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        if get_node_impl(node) is None:
            yield path, node
            continue
        # Pushed a second time below its children, to be yielded after them.
        stack.append((path, node, True))
        children = _with_bookkeeping(node, child_items(node))
        stack.extend(((*path, key), child, False) for key, child in reversed(children))


def _iter_tree(node: Any, path: Path, above: dict[int, Path], check: SharingCheck) -> Iterator[tuple[Path, Any]]:
    if _tree_leaf(node, path, check):
        yield path, node
        return
    _descend(node, path, above, check)
    children = tree_children(node)[0]
    if type(node) in GRAPH_TYPES:
        children = [item for item in _with_bookkeeping(node, children) if item[0] != "_pytree__nodes"]
    for key, child in children:
        yield from _iter_tree(child, (*path, key), above, check)
    del above[id(node)]
    yield path, node


def _tree_leaf(node: Any, path: Path, check: SharingCheck) -> bool:
    if is_pytree_node(node, check_graph_registry=False):
        return False
    check_is_pytree(node, check.function, path)
    if isinstance(node, Variable) or is_array_ref(node):
        check.meet(node, path)
    return True


# `above` has only the nodes on the current path: the same list twice is no sharing in a tree, a list in itself is a
# cycle.
def _descend(node: Any, path: Path, above: dict[int, Path], check: SharingCheck) -> None:
    if id(node) in above and node is not None:
        raise cycle(node, above[id(node)], path, check.function)
    above[id(node)] = path


def _children_where(node: Any, graph: bool | None, wanted: Callable[[Any], bool]) -> Iterator[tuple[Any, Any]]:
    if graph_mode(graph):
        if get_node_impl(node) is None:
            raise StructureError(f"Expected a graph node, got {type(node).__name__}", fix="for a pytree, graph=False")
        children = child_items(node)
    else:
        check_is_pytree(node, "iter_children")
        if not is_pytree_node(node, check_graph_registry=False):
            raise StructureError(f"Expected a pytree node, got {type(node).__name__}", fix="for a graph, graph=True")
        children = tree_children(node)[0]
    yield from ((key, value) for key, value in children if wanted(value))


def iter_children(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Any, Any]]:
    """Iterates over the immediate children of a node that are objects, Variables or refs, as (name, child).

    Raises:
        ValueError: if it is no node; in tree mode, if it is no pytree.

    >>> from weft import nnx
    >>> [name for name, _ in nnx.iter_children(nnx.Dict(w=nnx.Param(1.0), inner=nnx.Dict(n=2), n=3))]
    ['inner', 'w']
    """
    return _children_where(node, graph, is_graph_node)


def iter_module_children(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Any, Any]]:
    """Iterates over the immediate children of a node that are objects, as (name, child).

    Raises:
        ValueError: if it is no node; in tree mode, if it is no pytree.

    >>> from weft import nnx
    >>> [name for name, _ in nnx.iter_module_children(nnx.Dict(w=nnx.Param(1.0), inner=nnx.Dict(n=2)))]
    ['inner']
    """
    return _children_where(node, graph, is_node_module)


def recursive_map(f: Callable[[Path, Any], Any], node: Any, /, *, graph: bool | None = None) -> Any:
    """Returns a copy of a graph with `f(path, value)` in place of each node and leaf, children first.

    Args:
        f: is called with nodes whose children are mapped already, and may mutate them.
        node: the graph; its Variables are shared with the copy.
        graph: whether a shared node is mapped once (True), or is an error (False).

    Raises:
        ValueError: for a cycle; in tree mode, for a shared node.

    >>> from weft import nnx
    >>> model = nnx.Dict(n=1, inner=nnx.Dict(n=2))
    >>> doubled = nnx.recursive_map(lambda path, value: 2 * value if isinstance(value, int) else value, model)
    >>> doubled.n, doubled.inner.n, model.n
    (2, 4, 1)
    """
    if graph_mode(graph):
        return _map_graph(f, clone(node, variables=False, graph=True), (), {})
    return _map_tree(f, node, (), {}, SharingCheck("recursive_map"))


_IN_PROGRESS = object()


def _map_graph(f: Callable[[Path, Any], Any], node: Any, path: Path, results: dict[int, Any]) -> Any:
    # The default is the table itself, because `f` may return None or any other value.
    result = results.get(id(node), results)
    if result is _IN_PROGRESS:
        raise AliasError(f"Found cycle in the graph: {type(node).__name__} contains itself", at=format_path(path))
    if result is not results:
        return result[1]
    impl = get_node_impl(node)
    remembered = isinstance(impl, GraphNodeImpl) or isinstance(node, Variable) or is_array_ref(node)
    if remembered:
        results[id(node)] = _IN_PROGRESS
    for key, value in child_items(node) if impl is not None else ():
        mapped = _map_graph(f, value, (*path, key), results)
        if mapped is value:
            continue
        if impl is None or impl.set_key is None:
            raise StructureError(f"a {type(node).__name__} cannot change its children", at=format_path((*path, key)))
        impl.set_key(node, key, mapped)
    mapped = f(path, node)
    if remembered:
        results[id(node)] = (node, mapped)  # the node too: it must live as long as its `id` is a key
    return mapped


def _map_tree(f: Callable[[Path, Any], Any], node: Any, path: Path, above: dict[int, Path], check: SharingCheck) -> Any:
    if _tree_leaf(node, path, check):
        return f(path, node)
    _descend(node, path, above, check)
    children, treedef = tree_children(node)
    mapped = f(path, treedef.unflatten([_map_tree(f, child, (*path, key), above, check) for key, child in children]))
    del above[id(node)]
    return mapped


def find_duplicates(node: Any, /, *, only: Filter = ...) -> list[list[Path]]:
    """Finds the shared nodes of a graph, and returns all paths to each of them.

    Args:
        node: the graph.
        only: a filter of (path, node) for the second and further paths.

    Returns:
        For each shared node the list of its paths.

    Raises:
        TypeError: for a value that is no filter.

    >>> from weft.nnx.variable.kinds import Param
    >>> shared = Param(1)
    >>> find_duplicates([shared, {"a": shared}])
    [[(0,), (1, 'a')]]
    """
    test = to_predicate(only)
    paths: dict[int, list[Path]] = {}

    def visit(value: Any, path: Path) -> None:
        has_identity = is_graph_node(value) or is_node_leaf(value)
        if not has_identity and not is_pytree_node(value):
            return
        if id(value) in paths:
            if has_identity and test(path, value):
                paths[id(value)].append(path)
            return
        if has_identity:
            paths[id(value)] = [path]
        if get_node_impl(value) is not None:
            for key, child in child_items(value):
                visit(child, (*path, key))

    visit(node, ())
    return [paths_of_node for paths_of_node in paths.values() if len(paths_of_node) > 1]
