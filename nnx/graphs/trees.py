"""Tree mode (`graph=False`): objects are flattened as JAX pytrees, with Variables as leaves.

A pytree cannot express sharing, so a Variable or ref with two paths is an error that names both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.tree_util as jtu
from weft.core.paths import Path, format_path
from weft.nnx.errors import DuplicateError, StructureError
from weft.nnx.foreign import refuse_foreign
from weft.nnx.graphs.definitions import TreeNodeDef, VariableDef
from weft.nnx.graphs.nodes import jax_to_nnx_path
from weft.nnx.objects.attributes import GRAPH_TYPES
from weft.nnx.variable.refs import is_array_ref
from weft.nnx.variable.variable import Variable


def ways_out(function: str) -> str:
    """The `fix` of errors about sharing or cycles in tree mode."""
    return (
        f"remove the duplicates, enable graph mode with nnx.{function}(..., graph=True), "
        f"or call nnx.compat.{function}(...)"
    )


def duplicate(value: Any, first: Path, second: Path, function: str, where: str = "") -> DuplicateError:
    """Makes the error for a node with two paths in tree mode."""
    return DuplicateError(
        f"Duplicate {type(value).__name__}{where}: nnx.{function} in tree mode (graph=False) does not support shared "
        "references, but one was found at paths",
        at=[format_path(first), format_path(second)],
        fix=ways_out(function),
    )


def cycle(value: Any, first: Path, second: Path, function: str) -> DuplicateError:
    """Makes the error for a node that contains itself, in tree mode."""
    return DuplicateError(
        f"Cycle detected for {type(value).__name__}: cycles are not supported with graph=False, but one was "
        "found at paths",
        at=[format_path(first), format_path(second)],
        fix=ways_out(function),
    )


def check_is_pytree(value: Any, function: str, path: Path = ()) -> None:
    """Refuses an object whose class was declared with `pytree=False`.

    Raises:
        StructureError: naming its path.
    """
    if type(value) in GRAPH_TYPES and not getattr(value, "_pytree__is_pytree", True):
        raise StructureError(
            f"Cannot use {function!r} with graph=False on a {type(value).__name__!r}, whose class has pytree=False. "
            f"Found at path: {format_path(path)}",
            fix=ways_out(function),
        )


class SharingCheck:
    """Remembers the paths of Variables and refs, and refuses a second path to one of them."""

    def __init__(self, function: str):
        self.function = function
        self._seen: dict[int, Path] = {}

    def meet(self, value: Any, path: Path) -> None:
        first = self._seen.setdefault(id(value), path)
        # By identity: for a value that is met for the first time, `setdefault` returns this tuple.
        if first is not path:
            raise duplicate(value, first, path, self.function)


def refuse_sharing(node: Any, function: str, name: Callable[[Path], Path]) -> None:
    """Refuses a graph that is no tree.

    Args:
        node: the graph.
        function: the name of the calling function, for the error.
        name: a function from a path to the path that the error shows.

    Raises:
        ValueError: for a node with two paths, naming both; or for an object whose class has `pytree=False`.
    """
    # JAX flattens the tree later, so JAX's own walk decides what is reached. The leaves are dropped: `is_leaf` checks.
    jtu.tree_flatten_with_path(
        node, is_leaf=_checked_leaf(SharingCheck(function), function, name), is_leaf_takes_path=True
    )


def _checked_leaf(
    check: SharingCheck, function: str, name: Callable[[Path], Path] = lambda path: path
) -> Callable[[Any, Any], bool]:
    def is_leaf(path: Any, value: Any) -> bool:
        is_variable = isinstance(value, Variable)
        if is_variable or is_array_ref(value):
            check.meet(value, name(jax_to_nnx_path(path)))
        elif type(value) in GRAPH_TYPES:
            check_is_pytree(value, function, name(jax_to_nnx_path(path)))
        else:
            refuse_foreign(value)
        return is_variable

    return is_leaf


def tree_flatten(node: Any) -> tuple[list[Any], list[Any], tuple[Path, ...]]:
    """Returns a tree's definitions, its leaves sorted by path, and their paths."""
    is_leaf = _checked_leaf(SharingCheck("split"), "flatten")
    with_paths, treedef = jtu.tree_flatten_with_path(node, is_leaf=is_leaf, is_leaf_takes_path=True)
    paths = [jax_to_nnx_path(path) for path, _ in with_paths]
    # NNX's states are sorted by path; JAX flattens objects in the order of their registered children.
    order = sorted(range(len(paths)), key=paths.__getitem__)
    nodes: list[Any] = [TreeNodeDef(type(node), treedef, tuple((paths[i], i) for i in order))]
    leaves = [with_paths[i][1] for i in order]
    # JAX's treedef treats a Variable as a leaf here, so type and metadata of Variables are described separately.
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, Variable):
            nodes.append(VariableDef(leaf.var_type, place, None, leaf._nnx_metadata, None))
    return nodes, leaves, tuple(paths[i] for i in order)


def tree_unflatten(nodes: Sequence[Any], leaves: Sequence[Any], copy_variables: bool) -> Any:
    """Rebuilds a tree from leaves sorted by path. A raw value in the place of a Variable becomes a Variable."""
    tree = nodes[0]
    definitions = {node.index: node for node in nodes[1:]}
    placed: list[Any] = [None] * len(leaves)
    for i, ((_, place), leaf) in enumerate(zip(tree.path_index, leaves, strict=True)):
        definition = definitions.get(i)
        if definition is not None:
            if not isinstance(leaf, Variable):
                leaf = definition.type.from_metadata(leaf, definition.metadata)
            elif copy_variables:
                leaf = leaf.copy()
        placed[place] = leaf
    return jax.tree.unflatten(tree.treedef, placed)
