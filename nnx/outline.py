"""Trees without their arrays: outlines, and values that are pytrees as flat lists of arrays.

JAX takes and returns flat lists of arrays here; everything else of a tree is static, hashable, and goes separately.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.tree_util as jtu
from jax.core import Tracer
from weft.core.leaves import NUMBERS, is_array
from weft.core.paths import Path, format_path
from weft.nnx.errors import StaticError
from weft.nnx.nodes import is_graph_node
from weft.nnx.tree import nnx_path

Shape = Any  # a PyTreeDef, or None for a value that is one array


def spread(values: Sequence[Any]) -> tuple[tuple[Shape, ...] | None, list[Any]]:
    """Values as a flat list of arrays, and the shape of each; `None` for all if each is one array already."""
    kinds = set(map(type, values))
    if all(map(_is_one_array, kinds)):
        return None, list(values)
    shapes: list[Shape] = []
    flat: list[Any] = []
    for value in values:
        leaves, shape = jax.tree.flatten(value)
        is_one = len(leaves) == 1 and leaves[0] is value
        shapes.append(None if is_one else shape)
        flat.extend(leaves)
    return tuple(shapes), flat


def gather(shapes: tuple[Shape, ...] | None, flat: Sequence[Any]) -> list[Any]:
    """The inverse of `spread`."""
    if shapes is None:
        return list(flat)
    rest = iter(flat)
    return [
        next(rest) if shape is None else shape.unflatten([next(rest) for _ in range(shape.num_leaves)])
        for shape in shapes
    ]


def _gather_one(shape: Shape, rest: Iterator[Any]) -> Any:
    return next(rest) if shape is None else shape.unflatten([next(rest) for _ in range(shape.num_leaves)])


def width(shapes: tuple[Shape, ...] | None, count: int) -> int:
    """How many arrays `count` values of these shapes are."""
    return count if shapes is None else sum(1 if shape is None else shape.num_leaves for shape in shapes)


_array_kinds: dict[type, bool] = {}


def _is_one_array(kind: type) -> bool:
    known = _array_kinds.get(kind)
    if known is None:
        known = _array_kinds[kind] = issubclass(kind, jax.Array | Tracer) or kind in NUMBERS
    return known


@dataclasses.dataclass(frozen=True, eq=False)
class Outline:
    """A tree with its references and arrays taken out.

    Attributes:
        treedef: JAX's definition of the tree, with references as leaves.
        references: which of the leaves are references.
        statics: (place, type, value) of the leaves that are neither reference nor array.
    """

    treedef: Any
    references: tuple[bool, ...]
    statics: tuple[tuple[int, type, Any], ...]

    def _key(self) -> Any:
        return (self.treedef, self.references, self.statics)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Outline) and self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self._key())

    def reference_paths(self) -> list[Path]:
        """The path of each reference."""
        places = jtu.tree_flatten_with_path(jax.tree.unflatten(self.treedef, self.references))[0]
        return [nnx_path(path) for path, is_reference in places if is_reference]

    def build(self, references: Sequence[Any], arrays: Sequence[Any]) -> Any:
        """The tree again."""
        static = {place: value for place, _, value in self.statics}
        refs, rest = iter(references), iter(arrays)
        leaves = [
            next(refs) if is_reference else static[i] if i in static else next(rest)
            for i, is_reference in enumerate(self.references)
        ]
        return jax.tree.unflatten(self.treedef, leaves)


def outline(tree: Any) -> tuple[Outline, list[Any], list[Any]]:
    """A tree's outline, its references and its arrays.

    Raises:
        StaticError: for a leaf that is neither and cannot be hashed, naming its path.
    """
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_graph_node)
    marks = tuple([is_graph_node(leaf) for leaf in leaves])
    references = [leaf for leaf, mark in zip(leaves, marks, strict=True) if mark]
    arrays: list[Any] = []
    statics: list[tuple[int, type, Any]] = []
    for i, (leaf, mark) in enumerate(zip(leaves, marks, strict=True)):
        if not mark and (is_array(leaf) or type(leaf) in NUMBERS):
            arrays.append(leaf)
        elif not mark:
            statics.append((i, type(leaf), leaf))
            _check_hashable(tree, i, leaf)
    return Outline(treedef, marks, tuple(statics)), references, arrays


def _check_hashable(tree: Any, place: int, leaf: Any) -> None:
    try:
        hash(leaf)
    except TypeError:
        path = jtu.tree_flatten_with_path(tree, is_leaf=is_graph_node)[0][place][0]
        raise StaticError(
            f"a {type(leaf).__name__} is neither an array nor hashable, so it cannot cross into a transform",
            at=format_path(nnx_path(path)),
            fix="make it an array, a tuple, or a registered pytree",
        ) from None
