"""Selects arrays by a filter for `weft.tree`, finds them in another tree, and compares trees: `equal`, `allclose`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from weft.core.edge import trees
from weft.core.errors import StructureError
from weft.core.paths import Path, format_path
from weft.core.records.filters import Filter, Maybe
from weft.core.records.kinds import FrozenParam, Param
from weft.core.records.leaves import Leaf, is_array, iter_leaves
from weft.core.records.sorting import sort_leaves
from weft.core.records.storage import same_static
from weft.modules.dtypes import is_of

PARAMETERS = Maybe(Param)
# The arrays that have a precision to choose: parameters, frozen ones too, and arrays outside of records. Statistics and
# caches keep their dtype: in bfloat16, small updates of a running mean would be rounded away.
PRECISE = Maybe((Param, FrozenParam))


def chosen(tree: Any, filter: Filter) -> list[Leaf]:  # weft: skip(of any tree)
    """Returns the arrays of a tree that a filter matches."""
    leaves = [leaf for leaf in iter_leaves(tree) if leaf.dynamic]
    # A filter that matches nothing is an error in `sort_leaves`: a misspelt path would train or cast nothing, silently.
    places = sort_leaves(leaves, [filter], require_all=False)
    return [leaf for leaf, place in zip(leaves, places, strict=True) if place is not None]


def arrays_at(  # weft: skip(of any tree)
    tree: Any, leaves: Sequence[Leaf], name: str
) -> dict[Path, Any]:
    """Returns the arrays of a tree by path; refuses a tree that lacks one of `leaves`, or has another shape there."""
    arrays = {leaf.path: leaf.value for leaf in iter_leaves(tree) if leaf.dynamic}
    # All misfits are listed: trees of two models differ in more than one place.
    wrong = [f"{format_path(leaf.path)}: nothing there" for leaf in leaves if leaf.path not in arrays]
    wrong += [
        f"{format_path(leaf.path)}: {np.shape(arrays[leaf.path])}, not {np.shape(leaf.value)}"
        for leaf in leaves
        if leaf.path in arrays and np.shape(arrays[leaf.path]) != np.shape(leaf.value)
    ]
    if wrong:
        raise StructureError(f"{name} does not fit", at=wrong, fix="pass trees of the same model")
    return arrays


def norm(tree: Any, filter: Filter = PARAMETERS) -> Float[Array, ""]:  # weft: skip(of any tree)
    """Returns the Euclidean norm of all numbers as one vector, in float32 or wider.

    Args:
        tree: a model, or any tree.
        filter: selects the arrays that count; integers and keys among them are ignored.

    Raises:
        FilterError: if the filter matches nothing.

    >>> norm({"w": jnp.array([3.0, 0.0]), "b": jnp.array(4.0), "steps": jnp.array(7)}).item()
    5.0

    Source: `optax.global_norm`.
    """
    squares = [
        # Squares are summed in float32 at least: in float16 they overflow at 256, and gradient clipping would see inf.
        jnp.sum(jnp.square(jnp.abs(jnp.asarray(leaf.value, jnp.promote_types(leaf.value.dtype, jnp.float32)))))
        for leaf in chosen(tree, filter)
        if is_of(jnp.inexact, leaf.value)
    ]
    return jnp.sqrt(sum(squares, jnp.zeros((), jnp.float32)))


def equal(tree: Any, expected: Any) -> Bool[Array, ""]:  # weft: skip(of any tree)
    """Returns whether two trees are the same: structure, configuration, and each array's shape, dtype and numbers.

    Devices and shardings are not compared. NaN is not equal to NaN, as everywhere in NumPy.

    Returns:
        One boolean, which is a tracer under a transform; it is `False` if the structures differ.

    >>> model = {"w": jnp.ones(2), "name": "scale"}
    >>> bool(equal(model, {"w": jnp.ones(2), "name": "scale"})), bool(equal(model, {"w": jnp.ones(2)}))
    (True, False)

    Source: `equinox.tree_equal`.
    """
    alike = trees.structure(tree) == trees.structure(expected)
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True) if alike else ()
    result = jnp.asarray(alike)
    for mine, theirs in pairs:
        if is_array(mine) and is_array(theirs):
            if np.shape(mine) != np.shape(theirs) or mine.dtype != theirs.dtype:
                return jnp.asarray(False)
            result = result & jnp.all(mine == theirs)
        elif is_array(mine) or is_array(theirs) or not same_static(mine, theirs):
            return jnp.asarray(False)
    return result


def allclose(  # weft: skip(of any tree)
    tree: Any, expected: Any, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False, filter: Filter = ...
) -> Bool[Array, ""]:
    """Returns whether all numbers of two trees are nearly the same: `|tree - expected| <= atol + rtol * |expected|`.

    Dtypes may differ, as after a `cast`; configuration is not compared. Random keys have to be equal.

    Args:
        tree, expected: models, or any trees.
        rtol, atol, equal_nan: as in `jax.numpy.allclose`.
        filter: selects the arrays that are compared.

    Returns:
        One boolean, which is a tracer under a transform.

    Raises:
        FilterError: if the filter matches nothing.
        StructureError: if one of the trees lacks an array of the other, or has it in another shape; it names the path.

    >>> bool(allclose({"w": jnp.ones(2)}, {"w": jnp.ones(2) + 1e-7}))
    True
    """
    first, second = (chosen(part, filter) for part in (tree, expected))
    theirs, mine = arrays_at(expected, first, "the second tree"), arrays_at(tree, second, "the first tree")
    close = [_close(mine[leaf.path], theirs[leaf.path], rtol, atol, equal_nan) for leaf in first]
    return jnp.all(jnp.stack(close)) if close else jnp.asarray(True)


def _close(mine: Any, theirs: Any, rtol: float, atol: float, equal_nan: bool) -> Array:
    # Keys have no distance: two keys are the same stream, or unrelated ones.
    if is_of(jax.dtypes.prng_key, mine) or is_of(jax.dtypes.prng_key, theirs):
        same = is_array(mine) and is_array(theirs) and mine.dtype == theirs.dtype
        return jnp.all(mine == theirs) if same else jnp.asarray(False)
    wide = jnp.promote_types(jnp.result_type(mine), jnp.result_type(theirs))
    if jnp.issubdtype(wide, jnp.floating):
        # Half precision cannot express a tolerance of 1e-5, so nothing but equal numbers would pass.
        wide = jnp.promote_types(wide, jnp.float32)
    return jnp.allclose(jnp.asarray(mine, wide), jnp.asarray(theirs, wide), rtol, atol, equal_nan)
