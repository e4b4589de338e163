"""`split`, `merge`, `select`, `update`: dividing a tree of records by filters, and putting it together again.

A *part* is a sparse tree: the same records with `None` where a leaf belongs to another part. It holds arrays only, so
it goes through plain `jax.grad`, `jax.jit` and optax. The *structure* holds the rest: the treedef, the static leaves,
and the paths of all leaves, for `merge` and for errors.

    structure, params, rest = split(model, Param, ...)
    model = merge(structure, params, rest)

*Updates* are sparse in the same way: only the leaves that changed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from weft.core.definitions import REDEFINED, another, redefined_in
from weft.core.edge import trees
from weft.core.edge.trees import PyTree, TreeDef
from weft.core.errors import StaticError, StructureError
from weft.core.paths import Path, format_path
from weft.core.records.agree import changes_of_parts, lines, parts_of
from weft.core.records.filters import Filter
from weft.core.records.leaves import Leaf, iter_leaves
from weft.core.records.sorting import sort_leaves
from weft.core.records.storage import Make
from weft.core.tracebacks import cutting

T = TypeVar("T")


# A static leaf: its position, its type, and its value.
Placed = tuple[int, type, Any]


@dataclass(frozen=True)
class Structure:
    """Everything of a tree but its arrays: hashable, and equal for trees of equal structure.

    Attributes:
        treedef: the treedef of the whole tree.
        statics: the static leaves, as (position, type, value).
        paths: the path of every leaf, static ones too.
        fields: the types in the static fields of equinox's own records; see `leaves.iter_leaves`.

    >>> import jax.numpy as jnp
    >>> structure, arrays = split({"name": "m", "w": jnp.ones(2)}, ...)
    >>> structure.paths, structure == split({"name": "m", "w": jnp.zeros(2)}, ...)[0]
    ((('name',), ('w',)), True)
    """

    treedef: TreeDef
    statics: tuple[Placed, ...]
    paths: tuple[Path, ...]
    fields: tuple[object, ...] = ()

    def __hash__(self) -> int:
        return hash((self.treedef, self.statics))

    @property
    def make(self) -> Make:
        """The treedef, with the types in its static fields, which treedefs do not compare."""
        return Make(self.treedef, self.fields)

    def build(self, leaves: Sequence[PyTree]) -> PyTree:
        """Builds the tree with these dynamic leaves, in order."""
        return self.treedef.unflatten(self.place(leaves))

    @functools.cached_property
    def static_positions(self) -> frozenset[int]:
        """The positions of the static leaves."""
        return frozenset(position for position, _, _ in self.statics)

    def place(self, leaves: Sequence[PyTree]) -> list[PyTree]:
        """All leaves: these dynamic leaves and the static ones, in order."""
        if not self.statics:
            return list(leaves)
        return self._between({position: value for position, _, value in self.statics}, leaves)

    def without_statics(self, leaves: Sequence[PyTree]) -> PyTree:
        """The tree with these dynamic leaves, in order, and None in the places of the static ones."""
        return self.treedef.unflatten(self._between(dict.fromkeys(self.static_positions), leaves))

    def _between(self, statics: Mapping[int, PyTree], leaves: Sequence[PyTree]) -> list[PyTree]:
        dynamic = iter(leaves)
        return [statics[i] if i in statics else next(dynamic) for i in range(len(self.paths))]

    def __repr__(self) -> str:
        return f"Structure({len(self.paths) - len(self.statics)} arrays, {len(self.statics)} static leaves)"


def take_apart(tree: PyTree) -> tuple[Structure, list[Leaf]]:
    """The structure of a tree and its dynamic leaves.

    Raises:
        StaticError: if a static leaf is not hashable, naming its path.
    """
    # `iter_leaves` fills it with the types in static fields, which JAX does not compare when it compares treedefs.
    fields: list[object] = []
    leaves = list(iter_leaves(tree, fields=fields))
    return assemble(Structure, Make(trees.structure(tree), tuple(fields)), leaves)


S = TypeVar("S", bound=Structure)


def assemble(of: type[S], make: Make, leaves: Sequence[Leaf]) -> tuple[S, list[Leaf]]:
    """The structure of a tree, from its treedef and all of its leaves; and the dynamic ones of the leaves.

    Args:
        of: the class of the structure.
        make: the treedef, with the types in its static fields.
        leaves: all leaves of the tree.

    Raises:
        StaticError: if a static leaf is not hashable, naming its path.
    """
    # With their types: 1, 1.0 and True are equal, but a function that is traced with each gives different programs.
    statics: tuple[Placed, ...] = tuple(
        (i, cast("type[Any]", type(leaf.value)), leaf.value) for i, leaf in enumerate(leaves) if not leaf.dynamic
    )
    check_hashable(make.treedef, [(leaves[i].path, value) for i, _, value in statics])
    structure = of(make.treedef, statics, tuple(leaf.path for leaf in leaves), make.fields)
    return structure, [leaf for leaf in leaves if leaf.dynamic]


def check_hashable(treedef: TreeDef, statics: Sequence[tuple[Path, object]]) -> None:
    """Refuses static leaves, and static fields in a treedef, that cannot be hashed."""
    for path, value in statics:
        try:
            hash(value)
        except TypeError:
            raise StaticError(
                f"a static leaf must be hashable, but this {type(value).__name__} is not: {value!r}",
                at=format_path(path),
                fix="make it an array, a tuple, or a registered pytree",
            ) from None
    # JAX would raise when it first looks the treedef up in a cache, in an error that does not name the field.
    try:
        hash(treedef)
    except TypeError as error:
        raise StaticError(
            f"a static field holds something unhashable: {error}",
            at=str(treedef)[:200],
            fix="use a tuple for a list, a frozenset for a set, a frozen dataclass for a dict",
        ) from None


@cutting
def split(tree: PyTree, *filters: Filter) -> tuple[PyTree, ...]:
    """Divides a tree into parts: `structure, *parts = split(tree, *filters)`.

    Args:
        tree: any pytree, records and containers nested in any way.
        filters: one for each part; the first filter that matches a leaf takes it. No filters at all mean `...`.

    Returns:
        The structure, then for each filter the tree with `None` in the place of every leaf that it did not take.

    Raises:
        FilterError: if a leaf matches no filter, or a filter (other than `...`) matches no leaf.

    >>> import jax.numpy as jnp
    >>> structure, floats, rest = split({"w": jnp.ones(2), "n": jnp.arange(3)}, Param, ...)
    >>> floats["n"] is None, rest["w"] is None
    (True, True)
    """
    structure, leaves = take_apart(tree)
    filters = filters or (...,)
    places = sort_leaves(leaves, filters)
    return (structure, *(_part(structure, leaves, places, i) for i in range(len(filters))))


def _part(structure: Structure, leaves: Sequence[Leaf], places: Sequence[int | None], which: int) -> PyTree:
    # Parts hold arrays alone. Static leaves stay with the structure, so that two parts cannot disagree about them.
    return structure.without_statics([
        leaf.value if place == which else None for leaf, place in zip(leaves, places, strict=True)
    ])  # fmt: skip


@cutting
def merge(structure: Structure, *parts: PyTree) -> PyTree:
    """Puts the parts of `split` together again.

    Args:
        structure: the first result of `split`.
        parts: sparse trees which together hold every array exactly once, in any order.

    Raises:
        StructureError: naming the leaves that no part holds, or that two hold, or the part whose structure differs.

    >>> import jax.numpy as jnp
    >>> from weft.filters import PathContains
    >>> structure, small, rest = split({"a": jnp.zeros(()), "b": jnp.ones(())}, PathContains("a"), ...)
    >>> merge(structure, rest, {**small, "a": small["a"] + 1})["a"].item()
    1.0
    """
    # All parts are flattened before a leaf is chosen, so that the error names every leaf that is missing or there
    # twice.
    rows = [_leaves_like(structure.treedef, part, f"part {i}") for i, part in enumerate(parts)]
    dynamic = [
        (path, [row[i] for row in rows if row[i] is not None])
        for i, path in enumerate(structure.paths)
        if i not in structure.static_positions
    ]
    if missing := [format_path(path) for path, values in dynamic if not values]:
        raise StructureError("no part holds these leaves", at=missing, fix="pass every part that `split` returned")
    if twice := [format_path(path) for path, values in dynamic if len(values) > 1]:
        raise StructureError("two parts hold these leaves", at=twice, fix="pass each part once")
    return structure.build([value for _, (value,) in dynamic])


def _leaves_like(treedef: TreeDef, part: PyTree, name: str) -> list[PyTree]:
    try:
        return treedef.flatten_up_to(part)
    except ValueError as error:
        if again := redefined_in(treedef, part):
            path, wanted, actual = again
            raise StructureError(
                f"{name} has another structure than the tree: it has {another(actual)}, in the place of a "
                f"{wanted.__name__}",
                at=format_path(path, name),
                fix=REDEFINED,
            ) from None
        # JAX's text is about the nodes that wrap configuration, which users do not know.
        wanted, actual = parts_of(treedef, ()), parts_of(trees.structure(part), ())
        changes = {path: texts for path, texts in changes_of_parts(wanted, actual).items() if path in wanted}
        raise StructureError(
            f"{name} has another structure than the tree" + ("" if changes else f": {error}"),
            at=lines(changes, name) or f"{name}: {type(part).__name__}",
            fix="pass a sparse tree from `split`, `select` or `changes` on a tree of the same structure",
        ) from None


@cutting
def select(tree: PyTree, *filters: Filter) -> PyTree:
    """The leaves of a tree that filters match, as sparse trees with `None` in the places of all other leaves.

    Returns:
        One sparse tree for one filter, a tuple of them for several.

    Raises:
        FilterError: if a filter (other than `...`) matches no leaf.

    >>> import jax.numpy as jnp
    >>> from weft.filters import PathContains
    >>> select({"a": jnp.zeros(()), "b": jnp.ones(())}, PathContains("b"))
    {'a': None, 'b': Array(1., dtype=float32)}
    """
    structure, leaves = take_apart(tree)
    places = sort_leaves(leaves, filters, require_all=False)
    parts = tuple(_part(structure, leaves, places, i) for i in range(len(filters)))
    return parts[0] if len(parts) == 1 else parts


@cutting
def update(tree: T, *updates: PyTree) -> T:
    """A tree with the leaves of sparse updates in the places of its own; later updates win.

    Raises:
        StructureError: if an update has another structure than the tree.

    >>> import jax.numpy as jnp
    >>> update({"a": jnp.zeros(()), "b": jnp.ones(())}, {"a": jnp.array(5.0), "b": None})["a"].item()
    5.0
    """
    # By JAX's flattening, because updates hold arrays only; paths and kinds are not needed.
    leaves, treedef = trees.flatten(tree)
    for number, sparse in enumerate(updates):
        row = _leaves_like(treedef, sparse, f"update {number}")
        leaves = [old if new is None else new for old, new in zip(leaves, row, strict=True)]
    return cast(T, treedef.unflatten(leaves))


@cutting
def changes(before: T, after: T) -> PyTree:
    """The sparse updates that turn one tree into another: the leaves of `after` that are not the same object as before.

    Raises:
        StructureError: if the structures of the two trees differ.

    >>> import jax.numpy as jnp
    >>> before = {"a": jnp.zeros(()), "b": jnp.ones(())}
    >>> changes(before, {**before, "a": jnp.ones(())})
    {'a': Array(1., dtype=float32), 'b': None}
    """
    old, treedef = trees.flatten(before)
    new = _leaves_like(treedef, after, "the tree after")
    return treedef.unflatten([None if was is now else now for was, now in zip(old, new, strict=True)])


def with_leaves(tree: T, values: Mapping[Path, PyTree]) -> T:
    """A tree with other values at some paths."""
    leaves = [values.get(leaf.path, leaf.value) for leaf in iter_leaves(tree)]
    return cast(T, trees.structure(tree).unflatten(leaves))


def only_leaves(tree: T, values: Mapping[Path, PyTree]) -> T:
    """A sparse tree like this one: values at some paths, and `None` at all others."""
    return cast(T, trees.structure(tree).unflatten([values.get(leaf.path) for leaf in iter_leaves(tree)]))
