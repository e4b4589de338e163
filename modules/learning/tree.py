"""Functions over the arrays of a model, chosen by a filter: `weft.tree`.

    weft.tree.size(model)                                  # how many parameters
    weft.tree.cast(model, jnp.bfloat16)                    # parameters in another dtype; statistics stay
    weft.tree.ema(average, model, 0.999)                   # an average of the parameters over time
    weft.tree.norm(gradient)                               # the length of all numbers as one vector
    weft.tree.stack([make(key) for key in keys])           # layers as one record with a leading axis
    structure, params, rest = weft.tree.split(model, Param, ...)    # and back: weft.tree.merge(structure, params, rest)

A filter selects the arrays (see `help(weft.filters.Filter)`). The default is `Param`, or every array in functions on
whole models (`copy`, `stack`, `unstack`, `index`, `allclose`); `cast` takes frozen parameters, too. Other arrays and
configuration stay as they are. All functions work on any tree, also on sparse ones, and under any transform. A filter
of yours that matches nothing is an error; the default filter may match nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int
from weft.core.donations import naming_deleted
from weft.core.errors import AxisError, StructureError
from weft.core.interpreter.prefixes import mapped_size
from weft.core.paths import Path
from weft.core.records.agree import describe, differences
from weft.core.records.filters import Filter
from weft.core.records.kinds import Param
from weft.core.records.leaves import is_array
from weft.core.records.partition import Structure as Structure
from weft.core.records.partition import changes as changes
from weft.core.records.partition import merge as merge
from weft.core.records.partition import only_leaves, with_leaves
from weft.core.records.partition import select as select
from weft.core.records.partition import split as split
from weft.core.records.partition import update as update
from weft.core.records.sorting import sort_leaves
from weft.core.tracebacks import cutting
from weft.modules.construct import ConfigError
from weft.modules.dtypes import is_of
from weft.modules.explicit import laid_as
from weft.modules.learning.choosing import PARAMETERS, PRECISE, allclose, arrays_at, chosen, equal, norm

__all__ = [
    "Structure",
    "allclose",
    "apply_updates",
    "bytes",
    "cast",
    "changes",
    "copy",
    "ema",
    "equal",
    "index",
    "labels",
    "map",
    "mask",
    "merge",
    "norm",
    "select",
    "size",
    "split",
    "stack",
    "unstack",
    "update",
    "zeros_like",
]


def __dir__() -> list[str]:
    return sorted(__all__)


T = TypeVar("T")


def map(f: Callable[..., Any], tree: T, *rest: Any, filter: Filter = PARAMETERS) -> T:
    """Returns the tree with `f(array)` in the place of each array that a filter matches.

    Args:
        f: of one array, or of as many as there are trees.
        tree: a model, or any tree.
        rest: trees that hold an array wherever the filter chooses one of the first; they may be sparse.
        filter: for leaves of the first tree.

    Raises:
        FilterError: if the filter matches nothing.
        StructureError: if another tree lacks one of the arrays, naming its path.

    >>> doubled = map(lambda w: 2 * w, {"w": jnp.ones(2), "steps": jnp.array(3), "name": "scale"})
    >>> doubled["w"].tolist(), int(doubled["steps"]), doubled["name"]
    ([2.0, 2.0], 3, 'scale')
    """
    leaves = chosen(tree, filter)
    others = [arrays_at(values, leaves, f"tree {i}") for i, values in enumerate(rest, 1)]
    return with_leaves(tree, {leaf.path: f(leaf.value, *(values[leaf.path] for values in others)) for leaf in leaves})


def cast(tree: T, dtype: DTypeLike, filter: Filter = PRECISE) -> T:
    """Returns the tree with its floating-point arrays in another dtype; integers, keys and complex numbers stay.

    Args:
        tree: a model, or any tree.
        dtype: such as `jnp.bfloat16`.
        filter: selects the arrays to cast: by default parameters, frozen ones too; `...` for statistics and caches too.

    Raises:
        StructureError: if this is no floating-point dtype.

    >>> cast({"w": jnp.ones(2), "steps": jnp.array(3)}, jnp.bfloat16, ...)["w"].dtype.name
    'bfloat16'
    """
    wanted = jnp.dtype(dtype)
    if not jnp.issubdtype(wanted, jnp.floating):
        raise StructureError(f"{wanted.name} is not a floating-point dtype", fix="use map for another conversion")
    return map(lambda leaf: _as(leaf, wanted) if is_of(jnp.floating, leaf) else leaf, tree, filter=filter)


def copy(tree: T, filter: Filter = ...) -> T:
    """Returns the tree with new buffers, so that donating or deleting one tree leaves the other as it is.

    >>> w = jnp.ones(2)
    >>> twin = copy({"w": w, "name": "scale"})
    >>> twin["w"] is w, twin["name"]
    (False, 'scale')
    """

    def twin(leaf: Any) -> Any:
        if not is_array(leaf):  # a Python number
            return leaf
        # A NumPy array stays one: it may be larger than the memory of the device.
        return np.copy(leaf) if isinstance(leaf, np.ndarray) else jnp.copy(leaf)

    return map(twin, tree, filter=filter)


def stack(models: Sequence[T], axis: int = 0) -> T:
    """Stacks models of equal structure into one model whose arrays have a new axis, such as layers for `scan`.

    Args:
        models: alike in everything but the values of their arrays.
        axis: where the new axis goes.

    Raises:
        StructureError: if they are not alike, naming the paths that differ; or if there are none.

    >>> stack([{"w": jnp.zeros(2)}, {"w": jnp.ones(2)}])["w"].tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """
    models = list(models)
    if not models:
        raise StructureError("nothing to stack", fix="pass at least one model")
    first = describe(models[0], "")
    for i, model in enumerate(models[1:], 1):
        wrong = differences(first, describe(model, ""), root="models[0]")
        if wrong:
            raise StructureError(
                f"models[{i}] differs from models[0] in more than the values of arrays",
                at=wrong,
                fix="stack models that differ only in the values of their arrays",
            )
    rows = [chosen(model, ...) for model in models]
    together = zip(*rows, strict=True)
    return with_leaves(models[0], {row[0].path: jnp.stack([leaf.value for leaf in row], axis) for row in together})


def unstack(tree: T, axis: int = 0) -> list[T]:
    """Splits a stack into its models.

    Raises:
        AxisError: if arrays lack the axis, or differ in its size, naming their paths.

    >>> [part["w"].tolist() for part in unstack({"w": jnp.arange(4).reshape(2, 2)})]
    [[0, 1], [2, 3]]
    """
    return [index(tree, i, axis) for i in range(_length(tree, axis))]


def index(tree: T, i: int | Int[Array, ""], axis: int = 0) -> T:  # weft: skip(of any tree)
    """Returns one model of a stack.

    Args:
        tree: the stack.
        i: the number of the model; a negative number counts from the end. JAX clamps a traced number.
        axis: which axis the models are stacked on.

    Raises:
        AxisError: if arrays lack the axis, or differ in its size, naming their paths.
        IndexError: if `i` is out of range.

    >>> index({"w": jnp.arange(6).reshape(3, 2)}, -1)["w"].tolist()
    [4, 5]
    """
    length = _length(tree, axis)
    if not isinstance(i, jax.Array):
        i = operator.index(i)
        # JAX clamps an index out of range, so layer 12 of 12 would silently be layer 11.
        if not -length <= i < length:
            raise IndexError(f"index {i} of a stack of {length}")

    def item(leaf: Any) -> Any:
        return jnp.asarray(leaf)[(*(slice(None) for _ in range(axis % np.ndim(leaf))), i)]

    return map(item, tree, filter=...)


def size(tree: Any, filter: Filter = PARAMETERS) -> int:
    """Counts the numbers in the arrays that a filter matches.

    >>> size({"w": jnp.ones((2, 3)), "steps": jnp.array(3)}), size({"w": jnp.ones((2, 3)), "steps": jnp.array(3)}, ...)
    (6, 7)
    """
    return sum(math.prod(np.shape(leaf.value)) for leaf in chosen(tree, filter))


def bytes(tree: Any, filter: Filter = PARAMETERS) -> int:
    """Counts the bytes of the arrays that a filter matches.

    >>> bytes({"w": jnp.ones((2, 3), jnp.bfloat16)})
    12
    """
    return sum(math.prod(np.shape(leaf.value)) * jnp.result_type(leaf.value).itemsize for leaf in chosen(tree, filter))


def zeros_like(tree: T, filter: Filter = PARAMETERS) -> T:
    """Returns the tree with zeros in the place of the arrays that a filter matches.

    >>> zeros_like({"w": jnp.ones(2), "steps": jnp.arange(2)})
    {'steps': Array([0, 1], dtype=int32), 'w': Array([0., 0.], dtype=float32)}
    """
    return map(jnp.zeros_like, tree, filter=filter)


def mask(tree: T, filter: Filter, *, wrt: Filter = Param) -> T:
    """Marks the parameters that a filter matches, for optax: `optax.adamw(1e-3, mask=weft.tree.mask(model, ...))`.

    Args:
        tree: the model.
        filter: selects the parameters that are `True`; other parameters are `False`.
        wrt: a filter for the parameters; the mask is `None` at all other leaves, as gradients are.

    Raises:
        FilterError: if one of the filters matches nothing.

    >>> from weft.filters import Not, PathContains
    >>> mask({"w": jnp.ones(2), "b": jnp.ones(2), "n": jnp.array(0)}, Not(PathContains("b")))
    {'b': False, 'n': None, 'w': True}
    """
    parameters = chosen(tree, wrt)
    places = sort_leaves(parameters, [filter], require_all=False)
    return only_leaves(tree, {leaf.path: place is not None for leaf, place in zip(parameters, places, strict=True)})


def labels(tree: T, by_filter: Mapping[Any, Any], *, wrt: Filter = Param) -> T:
    """Returns a label for each parameter, as a tree for `optax.multi_transform`.

    Args:
        tree: the model.
        by_filter: from filters to labels; the first filter that matches a parameter gives its label.
        wrt: a filter for the parameters; the labels are `None` at all other leaves, as gradients are.

    Raises:
        FilterError: if a filter matches nothing, or a parameter matches no filter.

    >>> from weft.filters import PathContains
    >>> labels({"w": jnp.ones(2), "b": jnp.ones(2)}, {PathContains("b"): "slow", ...: "fast"})
    {'b': 'slow', 'w': 'fast'}
    """
    parameters, names = chosen(tree, wrt), list(by_filter.values())
    # Never None: `sort_leaves` raises for a parameter that matches no filter.
    places = sort_leaves(parameters, tuple(by_filter))
    return only_leaves(tree, {leaf.path: names[place or 0] for leaf, place in zip(parameters, places, strict=True)})


def ema(  # weft: skip(of any tree)
    average: T, model: T, decay: float | Float[Array, ""], filter: Filter = PARAMETERS
) -> T:
    """Returns the next exponential moving average: `decay * average + (1 - decay) * model`, parameter by parameter.

    Args:
        average: the average so far; a `copy` of the model at first. Its dtypes are kept.
        model: the model as it is now. Leaves that the filter does not match (statistics, counts) are taken from it.
        decay: the share of the average in the next average.
        filter: selects the arrays to average.

    Raises:
        StructureError: if the two are not alike, naming the paths.
        ConfigError: if the decay is known, and is not between 0 and 1: the average would grow without end.

    >>> ema({"w": jnp.zeros(2)}, {"w": jnp.ones(2)}, 0.75)["w"].tolist()
    [0.25, 0.25]
    """

    if not isinstance(decay, Tracer) and not 0 <= float(decay) <= 1:
        raise ConfigError(
            f"the decay of an average must be between 0 and 1, not {float(decay):g}",
            fix="pass the share of the average that each step keeps, such as 0.999",
        )
    leaves, before = (
        [leaf for leaf in chosen(part, filter) if is_of(jnp.inexact, leaf.value)] for part in (model, average)
    )
    # Both directions: a parameter that only one of the trees has would stay out of the average without a word.
    arrays_at(model, before, "the model")
    old = arrays_at(average, leaves, "the average")

    def blend(path: Path, new: Any) -> Any:
        # In bfloat16, which has 8 bits, a step of a thousandth rounds to no step, and the average would stand still.
        wide = jnp.promote_types(old[path].dtype, jnp.float32)
        start = _as(old[path], wide)
        return laid_as(_as(start + (1 - decay) * (_as(new, wide) - start), old[path].dtype), old[path])

    return with_leaves(model, {leaf.path: blend(leaf.path, leaf.value) for leaf in leaves})


def apply_updates(tree: T, updates: Any) -> T:
    """Adds optax's updates to the parameters of a tree, for programs that use optax without `Optimizer`.

    Args:
        tree: the model.
        updates: the updates that optax returns for a sparse gradient: `None` at all leaves that do not move.

    Returns:
        The tree; its dtypes are kept.

    Raises:
        StructureError: if there is an update for a path that the model does not have; the error names it.

    >>> apply_updates({"w": jnp.ones(2), "n": jnp.arange(2)}, {"w": -jnp.ones(2), "n": None})
    {'n': Array([0, 1], dtype=int32), 'w': Array([0., 0.], dtype=float32)}
    """
    moves = chosen(updates, ...)
    old = arrays_at(tree, moves, "the model")
    return with_leaves(tree, {u.path: _as(old[u.path] + u.value, jnp.result_type(old[u.path])) for u in moves})


def _length(tree: Any, axis: int) -> int:
    leaves = chosen(tree, ...)
    length = mapped_size(leaves, [axis] * len(leaves), size=None, name="a stack")
    if length is None:
        raise AxisError("a stack without arrays has no length", fix="keep the models in a list")
    return length


def _as(value: Any, dtype: Any) -> Any:
    return value if value.dtype == dtype else value.astype(dtype)


# Users call these functions, and an error's traceback should end in their code: the frames of this file are cut. The
# functions of `partition` are wrapped there already.
globals().update(
    {
        name: cutting(naming_deleted(thing))
        for name in __all__
        if (thing := globals()[name]).__module__.startswith("weft.modules.")
    }
)
